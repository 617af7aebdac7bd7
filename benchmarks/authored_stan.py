"""Models as authors of Stan programs write them, with simulated data: functions that give `(program, data)`."""

import numpy as np


def growth():
    """Regression in raw units, with predictions among the generated quantities."""
    rng = np.random.default_rng(301)
    age = rng.uniform(2, 15, 60)
    height = 80 + 6 * age + 5 * rng.normal(size=60)
    program = """
data {
  int<lower=0> N;
  vector[N] age;
  vector[N] height;
}
parameters {
  real alpha;
  real beta;
  real<lower=0> sigma;
}
model {
  alpha ~ normal(100, 50);
  beta ~ normal(0, 10);
  sigma ~ exponential(0.1);
  height ~ normal(alpha + beta * age, sigma);
}
generated quantities {
  real at_ten = alpha + 10 * beta;
}
"""
    return program, {"N": 60, "age": age.tolist(), "height": height.tolist()}


def schools():
    """Eight schools, non-centred."""
    program = """
data {
  int<lower=0> J;
  array[J] real y;
  array[J] real<lower=0> sigma;
}
parameters {
  real mu;
  real<lower=0> tau;
  vector[J] z;
}
transformed parameters {
  vector[J] theta = mu + tau * z;
}
model {
  mu ~ normal(0, 5);
  tau ~ cauchy(0, 5);
  z ~ std_normal();
  y ~ normal(theta, sigma);
}
"""
    return program, {"J": 8, "y": [28, 8, -3, 7, -1, 1, 18, 12], "sigma": [15, 10, 16, 11, 9, 11, 10, 18]}


MODELS = {"growth (Stan)": growth, "schools (Stan)": schools}
