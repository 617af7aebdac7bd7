// Reaction times of J people over days: lines that differ from person to person, with correlated intercepts and slopes.
data {
  int<lower=1> N;
  int<lower=1> J;
  array[N] int<lower=1, upper=J> person;
  vector[N] day;
  vector[N] y;
}
parameters {
  vector[2] beta;
  vector<lower=0>[2] tau;
  cholesky_factor_corr[2] L;
  matrix[2, J] z;
  real<lower=0> sigma;
}
transformed parameters {
  matrix[J, 2] line = (rep_matrix(beta, J) + diag_pre_multiply(tau, L) * z)';
}
model {
  beta ~ normal(0, 5);
  tau ~ exponential(1);
  L ~ lkj_corr_cholesky(2);
  to_vector(z) ~ std_normal();
  sigma ~ exponential(1);
  y ~ normal(line[person, 1] + line[person, 2] .* day, sigma);
}
generated quantities {
  real correlation = L[2, 1];
  vector[N] log_lik;
  vector[N] y_rep;
  for (n in 1:N) {
    real mu = line[person[n], 1] + line[person[n], 2] * day[n];
    log_lik[n] = normal_lpdf(y[n] | mu, sigma);
    y_rep[n] = normal_rng(mu, sigma);
  }
}
