from dataclasses import replace

import pytest
import torch
from torch.func import grad, hessian, jacrev, jvp, vmap

from geonet import Grid
from geonet.errors import ConfigError
from geonet.solvers.neural.deeponet import DeepONetSettings, SupervisedObjective
from geonet.solvers.neural.geonet import GeONetObjective, GeONetSettings
from geonet.solvers.neural.jets import columns
from geonet.solvers.neural.losses import Batch, LossSettings, softened
from geonet.solvers.neural.model import Branch, Trunk, build
from geonet.solvers.neural.transport.network import LEAST, TransportObjective, TransportSettings
from geonet.training.problems import FAMILIES, cartesian_batch, sensor_points, with_known_paths

# At its first jvp torch warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

TERMS = ("continuity", "hamilton_jacobi", "source", "target")
SLOPES = ("continuity_gradient", "hamilton_jacobi_gradient")
ALL = LossSettings(0.5, 0.25, 1.5, 2.0, 0.3, 0.7)
PAIRS, POINTS, PLACES = 2, 3, 4
NOBODY = (None, None)  # GeONet's loss does not ask for the ends elsewhere


@pytest.fixture(autouse=True)
def double_precision():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def model_of(d, symmetry="density", network="modified-mlp", features="coordinates", ends="learned"):
    settings = GeONetSettings(
        dimension=d,
        sensors=2,
        rank=5,
        swap_symmetry=symmetry,
        ends=ends,
        branch=Branch("mlp", 5, 3),
        trunk=Trunk(network, 4, 3, features, 2, 0.5),
    )
    model = build(settings, 1)
    noise = torch.Generator().manual_seed(2)
    with torch.no_grad():  # biases of a new network are zero, and its potential is small
        for p in model.parameters():
            if p.requires_grad:
                p += 0.5 * torch.randn(p.shape, generator=noise)
    return model


def batch_of(d, paired=False, seed=3):
    generator = torch.Generator().manual_seed(seed)
    points, places = (PAIRS, PAIRS) if paired else (POINTS, PLACES)
    there = (PAIRS,) if paired else (PAIRS, PLACES)
    shapes = [(PAIRS, 2**d)] * 2 + [(points, d), (points,), (places, d), there, there]
    tensors = (torch.rand(*shape, generator=generator) for shape in shapes)
    return Batch(*tensors, ends=NOBODY, paired=paired)


def residuals_in_the_box(model, batch, box, epsilon):
    """Residuals (pairs, points) and their gradients (pairs, points, d), all by autograd.

    In the units of the box: μ(x, t) = C(y, t)/L^d and u(x, t) = L²H(y, t) with x = lower + Ly.
    """
    d, length, lower = box.dimension, max(box.lengths), box.corner("lower")
    coefficients = model.coefficients(batch.source, batch.target)
    answers = []
    for c, h in zip(*coefficients, strict=True):

        def row(x, t):
            return torch.cat([(x - lower) / length, t[None]])

        def density(x, t, c=c):
            return c @ model.density.basis(row(x, t)) / length**d

        def potential(x, t, h=h):
            return h @ model.potential.basis(row(x, t)) * length**2

        def flux(x, t, density=density, potential=potential):
            return density(x, t) * grad(potential)(x, t) + epsilon * grad(density)(x, t)

        def continuity(x, t, density=density, flux=flux):
            return grad(density, 1)(x, t) + jacrev(flux)(x, t).trace()

        def hamilton_jacobi(x, t, potential=potential):
            velocity = grad(potential)(x, t)
            spreading = epsilon * hessian(potential)(x, t).trace()
            return grad(potential, 1)(x, t) + 0.5 * velocity @ velocity - spreading

        points = lower + length * batch.points
        functions = (continuity, hamilton_jacobi, jacrev(continuity), jacrev(hamilton_jacobi))
        answers.append([vmap(f)(points, batch.times) for f in functions])
    return [torch.stack(found) for found in zip(*answers, strict=True)]


def density_at(model, batch, where, times):
    """C in the unit box at (x, t): (pairs, points)."""
    basis = model.density.basis(torch.cat([where, times[:, None]], dim=1))
    return model.coefficients(batch.source, batch.target)[0] @ basis.T


def terms_in_the_box(model, batch, box, epsilon):
    residuals = residuals_in_the_box(model, batch, box, epsilon)
    squares = [(r**2).mean() if r.ndim == 2 else (r**2).sum(-1).mean() for r in residuals]
    terms = dict(zip(("continuity", "hamilton_jacobi", *SLOPES), squares, strict=True))
    volume = max(box.lengths) ** box.dimension
    for name, t, given in (("source", 0, batch.source_there), ("target", 1, batch.target_there)):
        there = density_at(model, batch, batch.places, torch.full((PLACES,), float(t)))
        terms[name] = (((there - given) / volume) ** 2).mean()
    return terms


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize(("lower", "upper"), [(0.0, 1.0), (-1.0, 2.0)])
@pytest.mark.parametrize("epsilon", [0.0, 0.8])
def test_the_loss_is_the_paper_s_in_the_units_of_the_box(d, lower, upper, epsilon):
    """Up to L^2d in front of all; with the gradients of every pair's residual."""
    model, batch, box = model_of(d), batch_of(d), Grid((4,) * d, lower, upper)
    settings = replace(ALL, epsilon=epsilon)
    objective = GeONetObjective(model, settings, box)
    terms, expected = objective(batch), terms_in_the_box(model, batch, box, epsilon)
    factor = (upper - lower) ** (2 * d)
    assert terms.keys() == expected.keys() == {*TERMS, *SLOPES}
    for name, term in terms.items():
        wanted = factor * getattr(settings, name) * expected[name]
        assert (objective.weights[name] * term).item() == pytest.approx(wanted.item(), rel=1e-9)
        assert wanted > 1e-6
    total = factor * sum(getattr(settings, name) * expected[name] for name in terms)
    assert objective.total(terms).item() == pytest.approx(total.item(), rel=1e-9)


@pytest.mark.parametrize(("d", "length"), [(1, 10.0), (2, 5.0), (3, 2.0)])
def test_weights_in_the_unit_box(d, length):
    weights = replace(ALL, characteristics=0.4).in_unit_box(Grid((4,) * d, 1.0, 1.0 + length))
    assert weights == pytest.approx(
        {
            "continuity": 0.5,
            "hamilton_jacobi": 0.25 * length ** (2 * d + 4),
            "source": 1.5,
            "target": 2.0,
            "continuity_gradient": 0.3 / length**2,
            "hamilton_jacobi_gradient": 0.7 * length ** (2 * d + 2),
            "characteristics": 0.4,
        }
    )


def test_epsilon_scales_like_length_squared():
    model, batch = model_of(2), batch_of(2)
    small = GeONetObjective(model, replace(ALL, epsilon=0.1), Grid((4, 4), 0, 1))
    large = GeONetObjective(model, replace(ALL, epsilon=2.5), Grid((4, 4), 0, 5))
    other = GeONetObjective(model, replace(ALL, epsilon=0.1), Grid((4, 4), 0, 5))
    assert large.epsilon == pytest.approx(small.epsilon)
    a, b, c = (objective(batch) for objective in (small, large, other))
    assert all(torch.allclose(a[name], b[name]) for name in a)
    assert not torch.allclose(a["continuity"], c["continuity"])
    assert not torch.allclose(a["hamilton_jacobi"], c["hamilton_jacobi"])


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, {*TERMS}),
        ({"continuity_gradient": 0.1}, {*TERMS, "continuity_gradient"}),
        ({"hamilton_jacobi_gradient": 0.1}, {*TERMS, "hamilton_jacobi_gradient"}),
        ({"continuity_gradient": 0.1, "hamilton_jacobi_gradient": 0.1}, {*TERMS, *SLOPES}),
    ],
)
@pytest.mark.parametrize("paired", [False, True])
def test_names_of_the_terms(changes, names, paired):
    objective = GeONetObjective(model_of(1), LossSettings(**changes), Grid(4))
    terms = objective(batch_of(1, paired))
    assert set(terms) == names == set(objective.weights)
    assert all(term.shape == () and term > 0 for term in terms.values())


def test_gradient_terms_leave_the_others_as_they_are():
    model, batch = model_of(2), batch_of(2)
    plain = GeONetObjective(model, LossSettings(), Grid((4, 4)))(batch)
    enhanced = GeONetObjective(model, ALL, Grid((4, 4)))(batch)
    assert all(torch.allclose(plain[name], enhanced[name], rtol=1e-12) for name in plain)


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("ends", ["learned", "given"])
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("weigh", [False, True])
def test_the_gradient_by_jets_is_that_of_forward_mode(d, ends, paired, weigh):
    """Σ_i (∂_i of the Hamilton–Jacobi residual)², where nothing but the jets is differentiated."""
    settings = replace(ALL, continuity_gradient=0.0, weigh_by_density=weigh)
    objective = GeONetObjective(model_of(d, ends=ends), settings, Grid((4,) * d))
    assert objective.differentiated == []
    batch = batch_of(d, paired)
    coefficients = objective.model.coefficients(batch.source, batch.target)
    expected = 0.0
    for direction in torch.eye(d):
        _, along = jvp(
            lambda points: objective._residuals(coefficients, batch, points),
            (batch.points,),
            (direction.expand_as(batch.points),),
        )
        expected = expected + (along["hamilton_jacobi"] ** 2).mean()
    found = objective(batch)["hamilton_jacobi_gradient"]
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)
    assert found > 1e-6


def test_third_derivatives_are_those_of_forward_mode():
    """Jets carry none: of continuity always, of Hamilton–Jacobi with noise."""
    for epsilon, expected in ((0.0, ["continuity"]), (0.2, ["continuity", "hamilton_jacobi"])):
        settings = replace(ALL, epsilon=epsilon)
        assert GeONetObjective(model_of(1), settings, Grid(4)).differentiated == expected


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ({"source": 0.0, "target": 0.0}, set()),
        ({"source": 0.0}, {"target"}),
        ({"target": 0.0}, {"source"}),
    ],
)
def test_ends_without_weight_are_no_terms(paired, changes, ends):
    objective = GeONetObjective(model_of(1), LossSettings(**changes), Grid(4))
    terms = objective(batch_of(1, paired))
    assert set(terms) == set(objective.weights) == {"continuity", "hamilton_jacobi", *ends}


def test_ends_without_weight_are_not_asked_for():
    """No places, no densities there: what is not looked at may be missing."""
    settings = LossSettings(source=0.0, target=0.0)
    objective = GeONetObjective(model_of(1, ends="given"), settings, Grid(4))
    batch = batch_of(1)
    blind = replace(batch, places=None, source_there=None, target_there=None)
    expected = objective(batch)
    assert all(torch.equal(term, expected[name]) for name, term in objective(blind).items())


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("robust", [0.01, 0.1])
def test_large_residuals_of_continuity_may_count_linearly(d, robust):
    """Those of the unit box, and in this term alone."""
    model, batch, box = model_of(d), batch_of(d), Grid((4,) * d)
    plain = GeONetObjective(model, ALL, box)(batch)
    terms = GeONetObjective(model, replace(ALL, robust=robust), box)(batch)
    residual, *_ = residuals_in_the_box(model, batch, box, 0.0)
    expected = softened(residual, robust).mean()
    assert terms["continuity"].item() == pytest.approx(expected.item(), rel=1e-9)
    assert terms["continuity"] < 0.999 * plain["continuity"]
    assert all(torch.equal(terms[name], plain[name]) for name in plain if name != "continuity")


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("weigh", [False, True])
@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_triples_are_the_diagonal(d, weigh, epsilon):
    """Each pair with its own point alone, as a batch of the other kind."""
    settings = replace(ALL, weigh_by_density=weigh, epsilon=epsilon)
    objective = GeONetObjective(model_of(d), settings, Grid((4,) * d))
    batch = batch_of(d, paired=True)
    together = objective(batch)
    alone = [
        objective(
            Batch(
                *(values[n : n + 1] for values in (batch.source, batch.target)),
                *(values[n : n + 1] for values in (batch.points, batch.times, batch.places)),
                *(values[n : n + 1, None] for values in (batch.source_there, batch.target_there)),
                ends=NOBODY,
                paired=False,
            )
        )
        for n in range(PAIRS)
    ]
    for name, term in together.items():
        assert torch.allclose(term, torch.stack([terms[name] for terms in alone]).mean()), name


def test_weighing_by_density():
    """Squares times max(C, 0) + floor; a weight, so that it is not differentiated in x."""
    model, batch, box = model_of(2), batch_of(2), Grid((4, 4))
    plain = GeONetObjective(model, ALL, box)(batch)
    terms = GeONetObjective(model, replace(ALL, weigh_by_density=True, floor=0.2), box)(batch)
    _, residual, _, slope = residuals_in_the_box(model, batch, box, 0.0)
    density = density_at(model, batch, batch.points, batch.times)
    assert density.min() < 0 < density.max()
    weight = density.clamp(min=0) + 0.2
    assert torch.allclose(terms["hamilton_jacobi"], (weight * residual**2).mean())
    expected = (weight * (slope**2).sum(-1)).mean()
    assert torch.allclose(terms["hamilton_jacobi_gradient"], expected)
    for name in {*TERMS, *SLOPES} - {"hamilton_jacobi", "hamilton_jacobi_gradient"}:
        assert torch.equal(terms[name], plain[name])


def test_the_density_does_not_flee_its_weight():
    """No gradient of the Hamilton–Jacobi term reaches C."""
    model = model_of(1)
    terms = GeONetObjective(model, replace(ALL, weigh_by_density=True), Grid(4))(batch_of(1))
    moving = [p for p in model.density.parameters() if p.requires_grad]
    for name in ("hamilton_jacobi", "hamilton_jacobi_gradient"):
        gradients = torch.autograd.grad(terms[name], moving, retain_graph=True, allow_unused=True)
        assert not any(g is not None and g.any() for g in gradients)


@pytest.mark.parametrize("network", ["mlp", "modified-mlp", "separable"])
@pytest.mark.parametrize("features", ["coordinates", "cosines", "fourier"])
@pytest.mark.parametrize("symmetry", ["none", "density", "both"])
@pytest.mark.parametrize(("paired", "settings"), [(False, LossSettings()), (True, ALL)])
def test_gradients_reach_every_weight(network, features, symmetry, paired, settings):
    model = model_of(1, symmetry, network, features)
    objective = GeONetObjective(model, settings, Grid(4))
    objective.total(objective(batch_of(1, paired))).backward()
    constant = model.potential.trunk.output.bias  # no equation sees it
    for name, p in model.named_parameters():
        if not p.requires_grad:
            assert p.grad is None, name
        elif p is constant:
            assert not p.grad.any()
        else:
            assert p.grad is not None and p.grad.abs().max() > 1e-12, name


def test_total_takes_other_weights():
    objective = GeONetObjective(model_of(1), ALL, Grid(4))
    terms = {name: torch.tensor(10.0**k) for k, name in enumerate(objective.weights)}
    other = {name: float(k) for k, name in enumerate(objective.weights)}
    assert objective.total(terms, other).item() == 543210
    assert objective.total(terms).item() == pytest.approx(0.5 + 2.5 + 150 + 2000 + 3000 + 70000)


@pytest.mark.parametrize("name", TERMS)
def test_a_term_may_have_no_weight(name):
    objective = GeONetObjective(model_of(1), replace(LossSettings(), **{name: 0.0}), Grid(4))
    terms = objective(batch_of(1))
    expected = sum(weight * terms[key] for key, weight in objective.weights.items())
    assert torch.allclose(objective.total(terms), expected)


@pytest.mark.parametrize("name", [*TERMS, *SLOPES, "characteristics", "robust", "epsilon", "floor"])
@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_negative_weights_are_refused(name, value):
    with pytest.raises(ConfigError) as error:
        LossSettings(**{name: value})
    assert str(error.value) == f"{name} is {value}; give ≥ 0."


# ---- continuity along characteristics


def smooth_ends(strength):
    """Two densities of each pair, as functions of points (N, d) or (B, N, d)."""
    waves = (1 + strength * torch.tensor([0.3, 0.8]), 1 - strength * torch.tensor([0.5, 0.2]))

    def end(wave):
        return lambda x: 1 + wave[:, None] * torch.cos(torch.pi * x).prod(-1) / 2

    return tuple(map(end, waves))


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("bent", [0.0, 0.7])
def test_what_both_ends_bring_by_autograd(d, bent):
    """(ρ0 − ρ1)² + 2(C − ρ)², over ρ0 + ρ1 + floor; with and without ω the same."""
    model, batch = model_of(d, ends="given"), replace(batch_of(d), ends=smooth_ends(1.0))
    settings = replace(ALL, characteristics=2.0, floor=0.3, hamilton_jacobi_gradient=bent)
    objective = GeONetObjective(model, settings, Grid((4,) * d))
    assert objective.weights["characteristics"] == 2.0
    _, coefficients = model.coefficients(batch.source, batch.target)
    total = 0.0
    density = density_at(model, batch, batch.points, batch.times)
    for b, own in enumerate(coefficients):
        for q, (x, t) in enumerate(zip(batch.points, batch.times, strict=True)):

            def potential(x, t=t, own=own):
                return own @ model.potential.basis(torch.cat([x, t[None]]))

            sides = []
            for end, s in zip(batch.ends, (-t, 1 - t), strict=True):
                there = x + s * grad(potential)(x)
                bent_by = torch.eye(d) + s * hessian(potential)(x)
                sides.append(end(there)[b] * torch.linalg.det(bent_by))
            mean = (1 - t) * sides[0] + t * sides[1]
            square = (sides[0] - sides[1]) ** 2 + 2 * (density[b, q] - mean) ** 2
            total += square / (sides[0].abs() + sides[1].abs() + 0.3)
    expected = (total / density.numel()).item()
    assert objective(batch)["characteristics"].item() == pytest.approx(expected, rel=1e-9)


def test_the_potential_does_not_follow_the_density():
    """What C gets wrong along characteristics does not move H."""
    model = model_of(1)
    settings = replace(ALL, characteristics=1.0)
    batch = replace(batch_of(1), ends=smooth_ends(1.0))
    moving = [p for p in model.potential.parameters() if p.requires_grad]

    def slopes():
        terms = GeONetObjective(model, settings, Grid(4))(batch)
        return torch.autograd.grad(terms["characteristics"], moving, allow_unused=True)

    before = slopes()
    with torch.no_grad():
        for p in model.density.parameters():
            p += 0.3
    after = slopes()
    seen = [(a, b) for a, b in zip(before, after, strict=True) if a is not None]
    assert any(a.any() for a, _ in seen)
    assert all(torch.equal(a, b) for a, b in seen)


# ---- the transport form


class Bowls(torch.nn.Module):
    """u(y) = ½cy² in 1D, one c for each pair: ∇u = cy and D²u = c."""

    def __init__(self, *c):
        super().__init__()
        self.c = torch.nn.Parameter(torch.tensor(c)[:, None])

    def potential(self, source, target):
        return self.c

    def basis(self, z):
        y = columns(z, 0, 1)
        return z.like(0.5 * (y * y).data)


def bowls_of(*pairs, at=(0.5,), floor=0.25):
    """The loss of pairs (c, a) with μ0 = a + x and μ1 = 2 + x."""
    c, a = zip(*pairs, strict=True)
    start = torch.tensor(a)[:, None]
    ends = (lambda x: start + x[..., 0], lambda x: 2 + x[..., 0])
    points = torch.tensor(at)[:, None]
    none = torch.empty(len(c), 0)
    batch = Batch(none, none, points, points[:, 0], points[:0], none, none, ends, False)
    objective = TransportObjective(Bowls(*c), LossSettings(floor=floor))
    return objective, objective(batch)


@pytest.mark.parametrize(
    ("pair", "mismatch", "folds"),
    [
        # ρ0 = (1 + ¼)·½ = 0.625, ρ1 = (2 + ¾)·1½ = 4.125
        ((1.0, 1.0), 3.5**2 / (4.75 + 0.25), 0.0),
        # ρ0 = (1 − ¼)·(−½) = −0.375, ρ1 = (2 + 1¼)·2½ = 8.125
        ((3.0, 1.0), 8.5**2 / (7.75 + 0.25), 0.55**2),
        # ρ0 = (41 − ¼)·(−½) = −20.375, and the sum is negative
        ((3.0, 41.0), 28.5**2 / (12.25 + 0.25), 0.55**2),
        # ρ0 = (1 + 1¼)·2½ = 5.625, ρ1 = (2 − ¼)·(−½) = −0.875
        ((-3.0, 1.0), 6.5**2 / (4.75 + 0.25), 0.55**2),
        # determinants 0.03 and 1.97: no fold, but close
        ((1.94, 1.0), (1.015 * 0.03 - 2.985 * 1.97) ** 2 / (5.9109 + 0.25), 0.02**2),
        ((0.0, 2.0), 0.0, 0.0),
    ],
)
def test_transport_terms_by_hand(pair, mismatch, folds):
    _, terms = bowls_of(pair)
    assert set(terms) == {"mismatch", "folds"}
    assert terms["mismatch"].item() == pytest.approx(mismatch, rel=1e-9, abs=1e-14)
    assert terms["folds"].item() == pytest.approx(folds, rel=1e-9, abs=1e-14)


def test_transport_terms_are_means_over_pairs_and_points():
    pairs, points = [(1.0, 1.0), (3.0, 1.0), (-2.5, 3.0)], (0.1, 0.5)
    _, together = bowls_of(*pairs, at=points)
    alone = [bowls_of(pair, at=(point,))[1] for pair in pairs for point in points]
    for name, term in together.items():
        assert term.shape == ()
        assert torch.allclose(term, torch.stack([terms[name] for terms in alone]).mean())


def test_the_denominator_carries_no_gradient():
    """With dρ0/dc = −¾ and dρ1/dc = 1¾ the slope is 2·3½·2½/5; through the sum, 0.49 less."""
    objective, terms = bowls_of((1.0, 1.0))
    (slope,) = torch.autograd.grad(terms["mismatch"], objective.model.c)
    assert slope.item() == pytest.approx(3.5)


def test_folds_are_pushed_open():
    objective, terms = bowls_of((3.0, 1.0), (1.0, 1.0))
    (slope,) = torch.autograd.grad(terms["folds"], objective.model.c)
    assert slope.flatten().tolist() == pytest.approx([0.55 / 2, 0.0])  # 2·0.55·½, over two pairs
    assert LEAST == 0.05


def test_the_floor_is_that_of_the_settings():
    _, terms = bowls_of((1.0, 1.0), floor=0.5)
    assert terms["mismatch"].item() == pytest.approx(3.5**2 / 5.25)


def test_both_transport_terms_count_once():
    objective, terms = bowls_of((3.0, 1.0))
    assert objective.weights == {"mismatch": 1.0, "folds": 1.0}
    assert objective.epsilon == 0.0
    assert torch.equal(objective.total(terms), terms["mismatch"] + terms["folds"])


@pytest.fixture
def single_precision(double_precision):
    """That of trainings, and of the mixtures they draw."""
    torch.set_default_dtype(torch.float32)


def transport_model(d):
    settings = TransportSettings(dimension=d, sensors=6, seen=4, modes=4, width=3, depth=2)
    model = build(settings, 1)
    noise = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.5 * torch.randn(p.shape, generator=noise)
    return model


def mixtures_batch(d):
    problem, sensors = FAMILIES[f"mixtures-{d}d"](), sensor_points(6, d)
    return cartesian_batch(problem, sensors, 3, 8, 0, torch.Generator().manual_seed(3))


@pytest.mark.parametrize("d", [1, 2, 3])
def test_transport_gradients_reach_every_weight(d, single_precision):
    objective = TransportObjective(transport_model(d), LossSettings())
    objective.total(objective(mixtures_batch(d))).backward()
    for name, p in objective.named_parameters():
        assert p.grad is not None and p.grad.abs().max() > 1e-12, name


@pytest.mark.parametrize("d", [1, 2, 3])
def test_equal_ends_have_no_transport_loss(d, single_precision):
    """Because the potential between them is zero."""
    batch = mixtures_batch(d)
    same = replace(batch, target=batch.source, ends=(batch.ends[0],) * 2)
    objective = TransportObjective(transport_model(d), LossSettings())
    terms = objective(same)
    assert terms["mismatch"] < 1e-9 and terms["folds"] == 0
    assert objective(batch)["mismatch"] > 1e-3


@pytest.mark.parametrize("d", [1, 2, 3])
def test_swapped_ends_have_the_same_transport_loss(d, single_precision):
    objective, batch = TransportObjective(transport_model(d), ALL), mixtures_batch(d)
    swapped = replace(batch, source=batch.target, target=batch.source, ends=batch.ends[::-1])
    there, back = objective(batch), objective(swapped)
    assert all(torch.allclose(there[name], back[name], rtol=1e-4) for name in there)


# ---- without physics


def supervised_model(symmetry="density"):
    settings = DeepONetSettings(
        sensors=6,
        rank=5,
        swap_symmetry=symmetry,
        branch=Branch("mlp", 5, 3),
        trunk=Trunk("mlp", 4, 3),
    )
    return build(settings, 1)


@pytest.mark.parametrize("symmetry", ["none", "density"])
def test_the_supervised_loss_is_the_mean_square_to_the_known_path(symmetry, single_precision):
    model, batch = supervised_model(symmetry), with_known_paths(mixtures_batch(1))
    objective = SupervisedObjective(model)
    terms = objective(batch)
    assert (set(terms), objective.weights, objective.epsilon) == ({"error"}, {"error": 1.0}, 0.0)
    squares = (density_at(model, batch, batch.points, batch.times) - batch.known) ** 2
    assert squares.shape == (3, 8)
    assert torch.allclose(terms["error"], squares.mean())
    assert torch.equal(objective.total(terms), terms["error"])


@pytest.mark.parametrize("symmetry", ["none", "density"])
def test_supervised_gradients_reach_every_weight(symmetry, single_precision):
    objective = SupervisedObjective(supervised_model(symmetry))
    objective.total(objective(with_known_paths(mixtures_batch(1)))).backward()
    for name, p in objective.named_parameters():
        if p.requires_grad:
            assert p.grad is not None and p.grad.abs().max() > 1e-12, name


def test_the_model_chooses_its_loss():
    box, settings = Grid(4, 0, 2), replace(ALL, characteristics=0.4, floor=0.3)
    learned = model_of(1).objective(settings, box)
    assert type(learned) is GeONetObjective
    assert learned.weights == settings.in_unit_box(box)
    direct = transport_model(1).objective(LossSettings(floor=0.3), box)
    assert type(direct) is TransportObjective
    assert direct.floor == 0.3
    assert type(supervised_model().objective(settings, box)) is SupervisedObjective
