"""The NumPyro forms of posteriordb's posteriors have the densities of its Stan programs, and the table is made right."""

import json
import zipfile

import jax
import numpy as np
import posteriordb
import pytest
from numpyro.handlers import seed, substitute
from numpyro.infer import init_to_uniform
from numpyro.infer.util import log_density
from scipy import stats
from scipy.integrate import solve_ivp

from yoasovi.bench import database, run, worker
from yoasovi.bench.real_models import FORMS

N = 7


def fake(name):
    """Small data with the names and shapes of a data set of the database."""
    rng = np.random.default_rng(0)
    real, positive = lambda *shape: rng.normal(size=shape or N), lambda *shape: np.exp(0.3 * rng.normal(size=shape or N))
    binary = rng.integers(2, size=N)
    both = {"N": np.asarray(N), "T": np.asarray(N), "y": real(), "x": np.sort(real()), "K": np.asarray(2)}
    if name.startswith("kidiq"):
        return both | {"kid_score": 80 + real(), "mom_iq": 100 + real(), "mom_hs": binary, "mom_work": 1 + np.arange(N) % 4}
    if name.startswith("nes"):
        names = ("partyid7", "real_ideo", "race_adj", "educ1", "gender", "income")
        return both | {k: real() for k in names} | {"age_discrete": 1 + np.arange(N) % 4}
    if name == "mesquite":
        names = ("weight", "diam1", "diam2", "canopy_height", "total_height", "density")
        return both | {k: positive() for k in names} | {"group": binary}
    if name.startswith("sblr"):
        return both | {"X": real(N, 3), "D": np.asarray(3)}
    if name.startswith("bball"):
        sds = {"tau": np.asarray(0.5), "rho": np.asarray(0.7)} if name.endswith("1") else {}
        return both | {"u": positive(), "v": positive(), "alpha": np.array([[4.0, 2.0], [1.0, 3.0]])} | sds
    return both | {
        "earnings": {"earn": positive(), "height": 65 + real(), "male": binary},
        "kilpisjarvi_mod": {"pmualpha": 9.0, "psalpha": 3.0, "pmubeta": 0.1, "psbeta": 0.4},
        "diamonds": {"X": np.column_stack([np.ones(N), real(N, 2)]), "Y": real()},
        "wells_data": {"dist": 50 * positive(), "arsenic": positive(), "switched": binary},
        "eight_schools": {"sigma": positive()},
        "radon_mn": {
            "J": np.asarray(3), "county_idx": 1 + np.arange(N) % 3, "log_uppm": real(), "floor_measure": binary,
            "log_radon": real(),
        },
        "rats_data": {"N": np.asarray(3), "rat": 1 + np.arange(N) % 3, "xbar": np.asarray(0.4)},
        "irt_2pl": {"y": rng.integers(2, size=(2, 3))},
        "garch": {"sigma1": np.asarray(0.5)},
        "gp_pois_regr": {"k": rng.integers(4, size=N)},
        "mcycle_gp": {"Y": real()} | {
            f"{part}{k}": value for k, m in (("_1", 3), ("_sigma_1", 2)) for part, value in
            (("Xgp", real(N, m)), ("slambda", positive(m, 1)))
        },
        "hudson_lynx_hare": {"ts": np.array([0.5, 1.0, 1.5]), "y": positive(3, 2), "y_init": positive(2)},
        "one_comp_mm_elim_abs": {
            "D": np.asarray(30), "V": np.asarray(2), "t0": np.asarray(0), "times": np.array([0.5, 1.0, 2.0]),
            "C_hat": positive(3),
        },
    }.get(name, {})  # fmt: skip


# The Stan programs' target in NumPy and SciPy, up to a constant: functions of the parameters p and the data d.
def normal(x, mean=0.0, sd=1.0):
    return stats.norm.logpdf(x, mean, sd).sum()


def cauchy(x, scale):
    return stats.cauchy.logpdf(x, 0, scale).sum()


def lines(p, response, *columns):
    return normal(response, p["beta"][0] + sum(b * c for b, c in zip(p["beta"][1:], columns, strict=True)), p["sigma"])


def nes(p, d):
    age = d["age_discrete"]
    ages = (age == 2, age == 3, age == 4)
    return lines(p, d["partyid7"], d["real_ideo"], d["race_adj"], *ages, d["educ1"], d["gender"], d["income"])


def bushes(p, d, *columns):
    return lines(p, np.log(d["weight"]), *columns)


def logmesquite(p, d):
    sizes = (np.log(d[k]) for k in ("diam1", "diam2", "canopy_height", "total_height", "density"))
    return bushes(p, d, *sizes, d["group"])


def volume(d):
    return np.log(d["diam1"] * d["diam2"] * d["canopy_height"])


def kid_products(p, d, hs, iq):
    return lines(p, d["kid_score"], hs, iq, hs * iq)


def doubly_scaled(x):
    return (x - np.mean(x)) / (2 * np.std(x, ddof=1))


def height_z(d):
    return (d["height"] - np.mean(d["height"])) / np.std(d["height"], ddof=1)


def diamonds(p, d):
    centred = d["X"][:, 1:] - d["X"][:, 1:].mean(0)
    priors = normal(p["b"]) + stats.t.logpdf(p["Intercept"], 3, 8, 10) + stats.t.logpdf(p["sigma"], 3, 0, 10)
    return priors + normal(d["Y"], p["Intercept"] + centred @ p["b"], p["sigma"])


def wells(p, d):
    chance = stats.logistic.cdf(p["alpha"] + p["beta"][0] * d["dist"] / 100 + p["beta"][1] * d["arsenic"])
    return stats.bernoulli.logpmf(d["switched"], chance).sum()


def schools(p, d):
    return cauchy(p["tau"], 5) + normal(p["mu"], 0, 5) + normal(d["y"], p["theta"], d["sigma"])


def radon(p, d):
    priors = normal(p["sigma_alpha"]) + normal(p["sigma_y"]) + normal(p["mu_alpha"], 0, 10) + normal(p["beta"], 0, 10)
    level = p["mu_alpha"] + p["sigma_alpha"] * p["alpha_raw"]
    mu = [level[j - 1] + p["beta"][0] * u + p["beta"][1] * f
          for j, u, f in zip(d["county_idx"], d["log_uppm"], d["floor_measure"], strict=True)]  # fmt: skip
    return priors + normal(p["alpha_raw"]) + normal(d["log_radon"], mu, p["sigma_y"])


def rats(p, d):
    total = normal(p["mu_alpha"], 0, 100) + normal(p["mu_beta"], 0, 100)
    total += normal(p["alpha"], p["mu_alpha"], p["sigma_alpha"]) + normal(p["beta"], p["mu_beta"], p["sigma_beta"])
    for r, x, y in zip(d["rat"], d["x"], d["y"], strict=True):
        total += normal(y, p["alpha"][r - 1] + p["beta"][r - 1] * (x - d["xbar"]), p["sigma_y"])
    return total


def irt_2pl(p, d):
    total = cauchy(np.array([p["sigma_theta"], p["sigma_a"], p["sigma_b"]]), 2) + normal(p["mu_b"], 0, 5)
    total += normal(p["theta"], 0, p["sigma_theta"]) + normal(p["b"], p["mu_b"], p["sigma_b"])
    total += stats.lognorm.logpdf(p["a"], p["sigma_a"]).sum()
    for i, row in enumerate(d["y"]):
        total += stats.bernoulli.logpmf(row, stats.logistic.cdf(p["a"][i] * (p["theta"] - p["b"][i]))).sum()
    return total


def ar(p, d):
    total = normal(p["alpha"], 0, 10) + normal(p["beta"], 0, 10) + cauchy(p["sigma"], 2.5)
    for t in range(2, N):
        total += normal(d["y"][t], p["alpha"] + p["beta"][0] * d["y"][t - 1] + p["beta"][1] * d["y"][t - 2], p["sigma"])
    return total


def arma(p, d):
    y, errors = d["y"], [d["y"][0] - (p["mu"] + p["phi"] * p["mu"])]
    for t in range(1, N):
        errors.append(y[t] - (p["mu"] + p["phi"] * y[t - 1] + p["theta"] * errors[-1]))
    priors = normal(p["mu"], 0, 10) + normal(p["phi"], 0, 2) + normal(p["theta"], 0, 2) + cauchy(p["sigma"], 2.5)
    return priors + normal(errors, 0, p["sigma"])


def garch(p, d):
    """With the Jacobian of beta1 = share (1 - alpha1)."""
    sds = [d["sigma1"]]
    for before in d["y"][:-1]:
        sds.append(np.sqrt(p["alpha0"] + p["alpha1"] * (before - p["mu"]) ** 2 + p["beta1"] * sds[-1] ** 2))
    return normal(d["y"], p["mu"], sds) + np.log(1 - p["alpha1"])


def mixture(p, d):
    priors = normal(p["sigma"], 0, 2) + normal(p["mu"], 0, 2) + stats.beta.logpdf(p["theta"], 5, 5)
    parts = [w * stats.norm.pdf(d["y"], p["mu"][k], p["sigma"][k]) for k, w in ((0, p["theta"]), (1, 1 - p["theta"]))]
    return priors + np.log(parts[0] + parts[1]).sum()


def covariance(p, d):
    return p["alpha"] ** 2 * np.exp(-((d["x"][:, None] - d["x"]) ** 2) / (2 * p["rho"] ** 2))


def process(p):
    return stats.gamma.logpdf(p["rho"], 25, scale=1 / 4) + normal(p["alpha"], 0, 2)


def gp_regr(p, d):
    law = stats.multivariate_normal(np.zeros(N), covariance(p, d) + p["sigma"] * np.eye(N))
    return process(p) + normal(p["sigma"], 0, 1) + law.logpdf(d["y"])


def gp_pois_regr(p, d):
    f = np.linalg.cholesky(covariance(p, d) + 1e-10 * np.eye(N)) @ p["f_tilde"]
    return process(p) + normal(p["f_tilde"]) + stats.poisson.logpmf(d["k"], np.exp(f)).sum()


def accel_gp(p, d):
    total = stats.t.logpdf(p["Intercept"], 3, -13, 36) + stats.t.logpdf(p["Intercept_sigma"], 3, 0, 10)
    curves = []
    for k in ("_1", "_sigma_1"):
        sd, scale, z = p[f"sdgp{k}"], p[f"lscale{k}"], p[f"zgp{k}"]
        total += stats.t.logpdf(sd, 3, 0, 36) + stats.invgamma.logpdf(scale, 1.124909, scale=0.0177) + normal(z)
        spectrum = sd**2 * np.sqrt(2 * np.pi) * scale * np.exp(-0.5 * scale**2 * d[f"slambda{k}"][:, 0] ** 2)
        curves.append(d[f"Xgp{k}"] @ (np.sqrt(spectrum) * z))
    return total + normal(d["Y"], p["Intercept"] + curves[0], np.exp(p["Intercept_sigma"] + curves[1]))


def forward(p, emissions):
    """Probabilities themselves, state by state; emissions are (times, 2) densities."""
    theta, alive = np.stack([p["theta1"], p["theta2"]]), emissions[0]
    for now in emissions[1:]:
        alive = np.array([sum(alive[j] * theta[j, k] for j in (0, 1)) * now[k] for k in (0, 1)])
    return np.log(alive.sum())


def pair(x, first, second):
    return normal(x[0], first) + normal(x[1], second)


def hmm_example(p, d):
    return pair(p["mu"], 3, 10) + forward(p, stats.norm.pdf(d["y"][:, None], p["mu"], 1))


def drive(p, d, speeds, distances):
    priors = sum(stats.dirichlet.logpdf(p[f"theta{k}"], d["alpha"][k - 1]) for k in (1, 2))
    return priors + pair(p["phi"], 0, 3) + pair(p["lambda"], 0, 3) + forward(p, speeds * distances)


def drive_exponential(p, d):
    return drive(p, d, *(stats.expon.pdf(d[k][:, None], scale=1 / p[r]) for k, r in (("u", "phi"), ("v", "lambda"))))


def drive_normal(p, d):
    return drive(
        p, d, stats.norm.pdf(d["u"][:, None], p["phi"], d["tau"]), stats.norm.pdf(d["v"][:, None], p["lambda"], d["rho"])
    )


def lotka_volterra(p, d):
    a, b, c, e = p["theta"]
    change = lambda t, z: [(a - b * z[1]) * z[0], (-c + e * z[0]) * z[1]]
    z = solve_ivp(change, (0, 2), p["z_init"], t_eval=d["ts"], rtol=1e-9, atol=1e-9).y.T
    law = lambda x, centre, sd: stats.lognorm.logpdf(x, sd, scale=centre).sum()
    priors = normal(p["theta"][[0, 2]], 1, 0.5) + normal(p["theta"][[1, 3]], 0.05, 0.05)
    priors += law(p["sigma"], np.exp(-1), 1) + law(p["z_init"], 10, 1)
    return priors + law(d["y_init"], p["z_init"], p["sigma"]) + law(d["y"], z, p["sigma"])


def one_comp(p, d):
    k_a, k_m, v_m = p["k_a"], p["K_m"], p["V_m"]
    change = lambda t, c: np.exp(-k_a * t) * d["D"] * k_a / d["V"] - v_m / d["V"] * c / (k_m + c)
    c = solve_ivp(change, (0, 3), [0.0], t_eval=d["times"], rtol=1e-9, atol=1e-9).y[0]
    priors = cauchy(np.array([k_a, k_m, v_m, p["sigma"]]), 1)
    return priors + stats.lognorm.logpdf(d["C_hat"], p["sigma"], scale=c).sum()


TARGETS = {
    "kidscore_momhs": lambda p, d: cauchy(p["sigma"], 2.5) + lines(p, d["kid_score"], d["mom_hs"]),
    "kidscore_momiq": lambda p, d: cauchy(p["sigma"], 2.5) + lines(p, d["kid_score"], d["mom_iq"]),
    "kidscore_momhsiq": lambda p, d: cauchy(p["sigma"], 2.5) + lines(p, d["kid_score"], d["mom_hs"], d["mom_iq"]),
    "kidscore_interaction": lambda p, d: cauchy(p["sigma"], 2.5) + kid_products(p, d, d["mom_hs"], d["mom_iq"]),
    "kidscore_interaction_c": lambda p, d: kid_products(
        p, d, d["mom_hs"] - np.mean(d["mom_hs"]), d["mom_iq"] - np.mean(d["mom_iq"])
    ),
    "kidscore_interaction_c2": lambda p, d: kid_products(p, d, d["mom_hs"] - 0.5, d["mom_iq"] - 100),
    "kidscore_interaction_z": lambda p, d: kid_products(p, d, doubly_scaled(d["mom_hs"]), doubly_scaled(d["mom_iq"])),
    "kidscore_mom_work": lambda p, d: lines(p, d["kid_score"], *(d["mom_work"] == k for k in (2, 3, 4))),
    "nes": nes,
    "earn_height": lambda p, d: lines(p, d["earn"], d["height"]),
    "logearn_height": lambda p, d: lines(p, np.log(d["earn"]), d["height"]),
    "log10earn_height": lambda p, d: lines(p, np.log(d["earn"]) / np.log(10), d["height"]),
    "logearn_height_male": lambda p, d: lines(p, np.log(d["earn"]), d["height"], d["male"]),
    "logearn_logheight_male": lambda p, d: lines(p, np.log(d["earn"]), np.log(d["height"]), d["male"]),
    "logearn_interaction": lambda p, d: lines(p, np.log(d["earn"]), d["height"], d["male"], d["height"] * d["male"]),
    "logearn_interaction_z": lambda p, d: lines(p, np.log(d["earn"]), height_z(d), d["male"], height_z(d) * d["male"]),
    "mesquite": lambda p, d: lines(
        p, d["weight"], d["diam1"], d["diam2"], d["canopy_height"], d["total_height"], d["density"], d["group"]
    ),
    "logmesquite": logmesquite,
    "logmesquite_logvolume": lambda p, d: bushes(p, d, volume(d)),
    "logmesquite_logva": lambda p, d: bushes(p, d, volume(d), np.log(d["diam1"] * d["diam2"]), d["group"]),
    "logmesquite_logvas": lambda p, d: bushes(
        p, d, volume(d), np.log(d["diam1"] * d["diam2"]), np.log(d["diam1"] / d["diam2"]), np.log(d["total_height"]),
        np.log(d["density"]), d["group"],
    ),
    "logmesquite_logvash": lambda p, d: bushes(
        p, d, volume(d), np.log(d["diam1"] * d["diam2"]), np.log(d["diam1"] / d["diam2"]), np.log(d["total_height"]),
        d["group"],
    ),
    "kilpisjarvi": lambda p, d: (
        normal(p["alpha"], 9, 3) + normal(p["beta"], 0.1, 0.4) + normal(d["y"], p["alpha"] + p["beta"] * d["x"], p["sigma"])
    ),
    "blr": lambda p, d: (
        normal(p["beta"], 0, 10) + normal(p["sigma"], 0, 10) + normal(d["y"], d["X"] @ p["beta"], p["sigma"])
    ),
    "diamonds": diamonds,
    "wells_dist100ars_model": wells,
    "eight_schools_centered": lambda p, d: schools(p, d) + normal(p["theta"], p["mu"], p["tau"]),
    "eight_schools_noncentered": lambda p, d: (
        schools(p | {"theta": p["theta_trans"] * p["tau"] + p["mu"]}, d) + normal(p["theta_trans"])
    ),
    "radon_hierarchical_intercept_noncentered": radon,
    "rats_model": rats,
    "irt_2pl": irt_2pl,
    "arK": ar,
    "arma11": arma,
    "garch11": garch,
    "low_dim_gauss_mix": mixture,
    "gp_regr": gp_regr,
    "gp_pois_regr": gp_pois_regr,
    "accel_gp": accel_gp,
    "hmm_example": hmm_example,
    "hmm_drive_0": drive_exponential,
    "hmm_drive_1": drive_normal,
    "lotka_volterra": lotka_volterra,
    "one_comp_mm_elim_abs": one_comp,
}  # fmt: skip


@pytest.mark.parametrize("name", {name.split("-")[1]: name for name in FORMS}.values())
def test_a_form_has_the_density_of_its_stan_program(name, x64):
    data_name, program = name.split("-")
    data = fake(data_name)
    model, args = FORMS[name](data)

    @jax.jit
    def there(key):
        found, trace = log_density(substitute(seed(model, key), substitute_fn=init_to_uniform(radius=1.0)), args, {}, {})
        return found, {k: site["value"] for k, site in trace.items() if not site.get("is_observed", False)}

    differences = []
    for key in range(3):
        found, point = there(jax.random.key(key))
        differences.append(float(found) - TARGETS[program]({k: np.asarray(v) for k, v in point.items()}, data))
    differential = program in ("lotka_volterra", "one_comp_mm_elim_abs")  # solved to an absolute tolerance of 1e-5 or 1e-6
    assert np.ptp(differences) < (1e-2 if differential else 1e-8)


def test_draws_of_the_database_are_put_in_the_order_of_their_indices():
    draws = [{f"beta[{j}]": [j, j] for j in (10, 2, 1, 3, 4, 5, 6, 7, 8, 9)} | {"tau": [0.5, 0.7]}] * 2
    found = database.by_site(draws)
    np.testing.assert_array_equal(found["beta"], np.tile(np.arange(1, 11), (4, 1)))
    np.testing.assert_array_equal(found["tau"], [0.5, 0.7, 0.5, 0.7])


def written(folder, path, value):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / path, "w") as file:
        file.writestr("any.json", json.dumps(value))


NAME = "earnings-earn_height"


@pytest.fixture
def clone(tmp_path):
    """A database with one posterior, whose reference draws have one sd of three doubled."""
    rng = np.random.default_rng(1)
    x, base = rng.normal(size=200), tmp_path / "clone" / "posterior_database"
    y = 1 + 2 * x + rng.normal(size=200)
    X = np.column_stack([np.ones(200), x])
    centre, squares, *_ = np.linalg.lstsq(X, y, rcond=None)
    sigma = np.sqrt(stats.invgamma(197 / 2, scale=squares[0] / 2).rvs(10_000, random_state=rng))
    beta = centre + (np.linalg.cholesky(np.linalg.inv(X.T @ X)) @ rng.normal(size=(2, 10_000)) * sigma).T
    beta[:, 0] += beta[:, 0] - beta[:, 0].mean()
    chain = {"beta[1]": beta[:, 0].tolist(), "beta[2]": beta[:, 1].tolist(), "sigma": sigma.tolist()}
    about = {"name": NAME, "data_name": "earnings", "reference_posterior_name": NAME}
    written(base, "data/data/earnings.json.zip", {"N": 200, "earn": y.tolist(), "height": x.tolist()})
    written(base, f"reference_posteriors/draws/draws/{NAME}.json.zip", [chain])
    (base / "posteriors").mkdir()
    (base / "posteriors" / f"{NAME}.json").write_text(json.dumps(about))
    return tmp_path / "clone"


def test_a_folder_gives_the_table_with_its_command_and_both_counts(clone, tmp_path, monkeypatch):
    """Right loosely, and not at NUTS quality."""
    words = ["posteriordb.py", str(clone), "--seeds", "1", "--only", NAME, "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    posteriordb.main()
    page = (tmp_path / "real_posteriors.md").read_text()
    assert f"`python benchmarks/posteriordb.py FOLDER --seeds 1 --only {NAME}`" in page
    assert "1 of 1 posteriors, 1 fits: 1 within 0.3 nat of the best seed, **0 at NUTS quality**, 1 loosely" in page


def test_a_folder_that_is_no_clone_is_refused_in_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["posteriordb.py", str(tmp_path)])
    with pytest.raises(SystemExit):
        posteriordb.main()
    assert "FOLDER must be a clone of github.com/stan-dev/posteriordb" in capsys.readouterr().err


def test_the_bench_takes_posteriors_from_a_folder_and_judges_by_its_draws(clone, tmp_path, monkeypatch):
    here = lambda task, seed, cores, limit, folder: worker.measured(task.problem, task.method, seed, True, None, str(folder))
    monkeypatch.setattr(run, "measure", here)
    peers = ("yoasovi, full-rank", "BlackJAX pathfinder")
    run.bench(tmp_path / "out", posteriors=(NAME,), peers=peers, posteriordb=clone)
    found = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert found["posteriors"] == {NAME: {"dim": 3, "about": "from posteriordb"}}
    assert "--posteriordb FOLDER" in found["command"] and str(tmp_path / "clone") not in found["command"]
    for row in found["rows"]:
        assert row["dim"] == 3 and row["mean_error"] < 0.5 and 0.4 < row["sd_low"] < 0.6
    with pytest.raises(ValueError, match="FOLDER must be a clone of "):
        run.bench(tmp_path / "x", posteriordb=tmp_path)
