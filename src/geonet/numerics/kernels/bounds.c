/* A transport plan between two densities from a potential, and its cost.

   The plan lives on a lattice of cells. The cell y sends its mass from x = y + s0 grad u to
   y + s1 grad u. Start and displacement are split linearly, so that mass moves from the 2^d cells
   around x, each by the 2^d displacements around (s1 - s0) grad u that are whole numbers of cells.
   plans.py documents the method and has the same in torch. */

#include "quadratic.h"

#define VERSION 8 /* increment with every change of the interface to plans.py */

typedef struct {
    int32_t d, threads;
    Grid potential; /* cells of the potential */
    Grid lattice; /* cells of the plan */
    double step[3]; /* side lengths of a cell of the plan, for the axes of the lattice */
    double factors[2]; /* s0 and s1 of the starts y + s0 grad u and of the ends y + s1 grad u */
    double reach; /* of Wasserstein-Fisher-Rao transport, whose factors are shorter; else zero */
    const double *masses[2]; /* of source and target in the cells of the plan */
    float *start; /* in cells from the first centre, (d, cells) */
    float *displacement; /* in cells, (d, cells) */
    double *mass; /* (cells) */
} Plan;

/* ---- points of the plan */

/* The spline cell of a position in cells, and weights of its value, slope and curvature. */
INLINE int32_t spline_weights(double position, int32_t n, double weights[3][3]) {
    int32_t cell = (int32_t)position;
    cell = cell < n - 1 ? cell : n - 1;
    const double s = position - cell - 0.5;
    weights[0][0] = 0.5 * (0.5 - s) * (0.5 - s);
    weights[0][1] = 0.75 - s * s;
    weights[0][2] = 0.5 * (0.5 + s) * (0.5 + s);
    weights[1][0] = s - 0.5, weights[1][1] = -2 * s, weights[1][2] = s + 0.5;
    weights[2][0] = 1, weights[2][1] = -2, weights[2][2] = 1;
    return cell;
}

/* Orders of differentiation along the leading axes that gradient and Hessian need. */
static const int ORDERS[6][2] = {{0, 0}, {1, 0}, {2, 0}, {0, 1}, {1, 1}, {0, 2}};

INLINE int row_count(const int d) { return d == 1 ? 1 : d == 2 ? 3 : 6; }

/* Derivatives along the leading axes at leading position (i, j) of the lattice, for all cells
   of the last axis of the potential: (row_count, n + 2), padded like rows. */
INLINE void combine_rows(const int d, const Plan *plan, const double *padded, int32_t i, int32_t j,
                         double *rows) {
    const Grid *grid = &plan->potential, *to = &plan->lattice;
    const int32_t n = grid->shape[2];
    double first[3][3] = {{1}, {1}, {1}}, second[3][3] = {{1}, {1}, {1}};
    int32_t a = 0, b = 0;
    if (d == 3)
        a = spline_weights((i + 0.5) * grid->shape[0] / to->shape[0], grid->shape[0], first);
    if (d > 1)
        b = spline_weights((j + 0.5) * grid->shape[1] / to->shape[1], grid->shape[1], second);
    int64_t taps[9];
    tap_rows(d, grid, a, b, n + 2, taps);
    for (int r = 0; r < row_count(d); r++) {
        double *row = rows + (int64_t)r * (n + 2);
        memset(row, 0, sizeof(double) * (size_t)(n + 2));
        for (int k = 0; k < tap_row_count(d); k++) {
            const double w = d == 1   ? 1
                             : d == 2 ? second[r][k]
                                      : first[ORDERS[r][0]][k / 3] * second[ORDERS[r][1]][k % 3];
            const double *from = padded + taps[k];
#pragma omp simd
            for (int32_t c = 0; c < n + 2; c++) row[c] += w * from[c];
        }
    }
}

/* Gradient and Hessian (packed) in units of the potential's cells, from combined rows. */
INLINE void evaluate_jet(const int d, const double *rows, int32_t stride, int32_t cell,
                         double w[3][3], double *gradient, double *hessian) {
    double jet[6][3];
    for (int r = 0; r < row_count(d); r++)
        for (int o = 0; o < 3; o++) {
            const double *c = rows + (int64_t)r * stride + cell;
            jet[r][o] = w[o][0] * c[0] + w[o][1] * c[1] + w[o][2] * c[2];
        }
    if (d == 1) {
        gradient[0] = jet[0][1];
        hessian[0] = jet[0][2];
    }
    if (d == 2) {
        gradient[0] = jet[1][0], gradient[1] = jet[0][1];
        hessian[0] = jet[2][0], hessian[1] = jet[1][1], hessian[2] = jet[0][2];
    }
    if (d == 3) {
        gradient[0] = jet[1][0], gradient[1] = jet[3][0], gradient[2] = jet[0][1];
        hessian[0] = jet[2][0], hessian[1] = jet[4][0], hessian[2] = jet[1][1];
        hessian[3] = jet[5][0], hessian[4] = jet[3][1], hessian[5] = jet[0][2];
    }
}

/* det(I + s H) of a packed symmetric matrix, zero unless I + s H is positive definite. */
INLINE double positive_determinant(const int d, const double *h, double s) {
    const double a = 1 + s * h[0];
    if (d == 1) return a > 0 ? a : 0;
    const double b = s * h[1], c = 1 + s * h[d == 2 ? 2 : 3], minor = a * c - b * b;
    if (d == 2) return a > 0 && minor > 0 ? minor : 0;
    const double e = s * h[2], f = s * h[4], g = 1 + s * h[5];
    const double det = a * (c * g - f * f) - b * (b * g - f * e) + e * (b * f - c * e);
    return a > 0 && minor > 0 && det > 0 ? det : 0;
}

/* The factor of the map y + factor grad u of Wasserstein-Fisher-Rao transport to one end, with s = -1/2
   or 1/2: s atan(q)/q, q = |grad u|/reach. det: det G det(G^-1 + s D2u), zero where the map folds,
   where G has the eigenvalue 1/(1 + q^2) along grad u and atan(q)/q across it. */
INLINE double shorten_factor(const int d, double reach, double s, const double *gradient,
                             const double *hessian, double *det) {
    double square = 0, shifted[6];
    for (int a = 0; a < d; a++) square += gradient[a] * gradient[a];
    const double q2 = square / (reach * reach), q = sqrt(q2), along = 1 / (1 + q2);
    const double across = q > 1e-4 ? atan(q) / q : 1 - q2 / 3;
    const double other = square > 0 ? (1 / along - 1 / across) / square : 0;
    for (int a = 0, e = 0; a < d; a++)
        for (int b = a; b < d; b++, e++)
            shifted[e] = hessian[e] + ((a == b ? 1 / across - 1 : 0) +
                                       other * gradient[a] * gradient[b]) /
                                          s;
    *det = along * (d > 1 ? across : 1) * (d > 2 ? across : 1) * positive_determinant(d, shifted, s);
    return s * across;
}

/* Linear interpolation of a density at a position in cells. */
INLINE double interpolate(const int d, const Grid *grid, const double *values, const double *x) {
    double t[3], total = 0;
    int64_t low[3], next[3], stride = 1;
    for (int a = d - 1; a >= 0; stride *= grid->shape[3 - d + a], a--) {
        const int32_t n = grid->shape[3 - d + a];
        const int32_t i = (int32_t)x[a] < n - 1 ? (int32_t)x[a] : n - 1;
        t[a] = x[a] - i;
        low[a] = i * stride;
        next[a] = i + 1 < n ? stride : 0;
    }
    for (int corner = 0; corner < 1 << d; corner++) {
        double share = 1;
        int64_t at = 0;
        for (int a = 0; a < d; a++) {
            share *= corner >> a & 1 ? t[a] : 1 - t[a];
            at += low[a] + (corner >> a & 1 ? next[a] : 0);
        }
        total += share * values[at];
    }
    return total;
}

INLINE double clamp(double x, double upper) { return x < 0 ? 0 : x < upper ? x : upper; }

/* Masses, starts and displacements of the points of a slab of the lattice's rows. */
INLINE void place_rows(const int d, Plan *plan, const double *padded, int64_t from, int64_t to) {
    const Grid *grid = &plan->potential, *lattice = &plan->lattice;
    const int32_t n = grid->shape[2], m = lattice->shape[2];
    double *rows = malloc(sizeof(double) * (size_t)(row_count(d) * (n + 2)));
    double ratio[3], pitch[3];
    for (int a = 0; a < d; a++) {
        ratio[a] = (double)grid->shape[3 - d + a] / lattice->shape[3 - d + a];
        pitch[a] = ratio[a] / plan->step[a]; /* 1 / side length of a cell of the potential */
    }
    for (int64_t r = from; r < to; r++) {
        const int32_t i = (int32_t)(r / lattice->shape[1]), j = (int32_t)(r % lattice->shape[1]);
        combine_rows(d, plan, padded, i, j, rows);
        for (int32_t k = 0; k < m; k++) {
            double w[3][3], gradient[3], hessian[6], x[2][3], det[2], rho[2];
            const int32_t index[3] = {i, j, k};
            const int32_t cell = spline_weights((k + 0.5) * ratio[d - 1], n, w);
            const int64_t point = r * m + k;
            evaluate_jet(d, rows, n + 2, cell, w, gradient, hessian);
            for (int a = 0, e = 0; a < d; a++) {
                gradient[a] *= pitch[a];
                for (int b = a; b < d; b++) hessian[e++] *= pitch[a] * pitch[b];
            }
            for (int side = 0; side < 2; side++) {
                double s = plan->factors[side];
                if (plan->reach > 0)
                    s = shorten_factor(d, plan->reach, s, gradient, hessian, &det[side]);
                else
                    det[side] = positive_determinant(d, hessian, s);
                for (int a = 0; a < d; a++)
                    x[side][a] = clamp(index[3 - d + a] + s * gradient[a] / plan->step[a],
                                       lattice->shape[3 - d + a] - 1);
                rho[side] = det[side] > 0 ? det[side] * interpolate(d, lattice, plan->masses[side],
                                                                    x[side])
                                          : 0;
            }
            for (int a = 0; a < d; a++) {
                plan->start[a * lattice->cells + point] = (float)x[0][a];
                plan->displacement[a * lattice->cells + point] = (float)(x[1][a] - x[0][a]);
            }
            const double first = det[0] * det[0], second = det[1] * det[1], sum = first + second;
            plan->mass[point] = sum > 0 ? (first * rho[0] + second * rho[1]) / sum : 0;
        }
    }
    free(rows);
}

static void place_any(int d, Plan *plan, const double *padded, int64_t from, int64_t to) {
    if (d == 1) place_rows(1, plan, padded, from, to);
    if (d == 2) place_rows(2, plan, padded, from, to);
    if (d == 3) place_rows(3, plan, padded, from, to);
}

/* Set masses and ends of the points of a plan. padded: scratch, rows of the potential's shape
   with two more columns. */
void geonet_plan_points(Plan *plan, const double *coefficients, double *padded) {
    const int64_t rows = plan->lattice.cells / plan->lattice.shape[2];
    geonet_pad_rows(&plan->potential, coefficients, padded);
#pragma omp parallel for num_threads(plan->threads) schedule(static) if (plan->threads > 1)
    for (int part = 0; part < plan->threads; part++)
        place_any(plan->d, plan, padded, rows * part / plan->threads,
                  rows * (part + 1) / plan->threads);
}

/* ---- marginals and cost */

/* The cells from which and to which a point sends mass, for three axes: missing ones come
   first, with one cell. Offsets of cells are in the flat array of the lattice. */
typedef struct {
    double start[3], displacement[3]; /* fractions beyond the first cell */
    int32_t from[3][2], to[3][3];
} Taps;

INLINE void find_taps(const int d, const Plan *plan, int64_t point, Taps *taps) {
    const Grid *grid = &plan->lattice;
    int32_t stride = 1;
    for (int a = 2; a >= 3 - d; stride *= grid->shape[a], a--) {
        const int32_t n = grid->shape[a];
        const float start = plan->start[(a - 3 + d) * grid->cells + point];
        const float displacement = plan->displacement[(a - 3 + d) * grid->cells + point];
        const int32_t i = (int32_t)start, k = (int32_t)floorf(displacement);
        taps->start[a] = start - (float)i;
        taps->displacement[a] = displacement - (float)k;
        for (int c = 0; c < 2; c++) taps->from[a][c] = clamp_index(i + c, n) * stride;
        for (int c = 0; c < 3; c++) taps->to[a][c] = clamp_index(i + k + c, n) * stride;
    }
    for (int a = 0; a < 3 - d; a++) {
        taps->start[a] = taps->displacement[a] = 0;
        taps->from[a][0] = taps->to[a][0] = 0;
    }
}

/* Share and cell of start (i, j, k). */
INLINE double start_share(const int d, const Taps *taps, int i, int j, int k, int32_t *cell) {
    const double *t = taps->start;
    *cell = taps->from[0][i] + taps->from[1][j] + taps->from[2][k];
    double share = k ? t[2] : 1 - t[2];
    if (d > 1) share *= j ? t[1] : 1 - t[1];
    if (d > 2) share *= i ? t[0] : 1 - t[0];
    return share;
}

#define FOR_STARTS(d)                          \
    for (int i = 0; i < ((d) > 2 ? 2 : 1); i++) \
        for (int j = 0; j < ((d) > 1 ? 2 : 1); j++) \
            for (int k = 0; k < 2; k++)

/* Means of values over the displacements, for every start. */
INLINE void gather_ends(const int d, const Taps *taps, const double *values, double v[3][3][3]) {
    const double *f = taps->displacement;
    const int planes = d > 2 ? 3 : 1, lines = d > 1 ? 3 : 1;
    for (int i = 0; i < planes; i++)
        for (int j = 0; j < lines; j++) {
            const double *row = values + taps->to[0][i] + taps->to[1][j];
            const double a = row[taps->to[2][0]], b = row[taps->to[2][1]], c = row[taps->to[2][2]];
            v[i][j][0] = a + f[2] * (b - a);
            v[i][j][1] = b + f[2] * (c - b);
        }
    for (int i = 0; d > 1 && i < planes; i++)
        for (int j = 0; j < 2; j++)
            for (int k = 0; k < 2; k++) v[i][j][k] += f[1] * (v[i][j + 1][k] - v[i][j][k]);
    for (int i = 0; d > 2 && i < 2; i++)
        for (int j = 0; j < 2; j++)
            for (int k = 0; k < 2; k++) v[i][j][k] += f[0] * (v[i + 1][j][k] - v[i][j][k]);
}

/* Transpose of `gather_ends`: add masses of the starts to where they end; overwrites v. */
INLINE void scatter_ends(const int d, const Taps *taps, double v[3][3][3], double *held) {
    const double *f = taps->displacement;
    for (int j = 0; d > 2 && j < 2; j++)
        for (int k = 0; k < 2; k++) {
            const double a = v[0][j][k], b = v[1][j][k];
            v[0][j][k] = (1 - f[0]) * a;
            v[1][j][k] = f[0] * a + (1 - f[0]) * b;
            v[2][j][k] = f[0] * b;
        }
    for (int i = 0; d > 1 && i < (d > 2 ? 3 : 1); i++)
        for (int k = 0; k < 2; k++) {
            const double a = v[i][0][k], b = v[i][1][k];
            v[i][0][k] = (1 - f[1]) * a;
            v[i][1][k] = f[1] * a + (1 - f[1]) * b;
            v[i][2][k] = f[1] * b;
        }
    for (int i = 0; i < (d > 2 ? 3 : 1); i++)
        for (int j = 0; j < (d > 1 ? 3 : 1); j++) {
            double *row = held + taps->to[0][i] + taps->to[1][j];
            const double a = v[i][j][0], b = v[i][j][1];
            row[taps->to[2][0]] += (1 - f[2]) * a;
            row[taps->to[2][1]] += f[2] * a + (1 - f[2]) * b;
            row[taps->to[2][2]] += f[2] * b;
        }
}

/* Add the masses of some points at one end; `other` multiplies shares at the other end. */
INLINE void add_marginal(const int d, const Plan *plan, int side, const double *other,
                         int64_t begin, int64_t end, double *held) {
    Taps taps;
    double v[3][3][3] = {{{0}}};
    for (int64_t p = begin; p < end; p++) {
        const double mass = plan->mass[p];
        if (mass == 0) continue;
        find_taps(d, plan, p, &taps);
        if (side == 0 && other) gather_ends(d, &taps, other, v);
        FOR_STARTS(d) {
            int32_t cell;
            const double own = mass * start_share(d, &taps, i, j, k, &cell);
            if (side == 0)
                held[cell] += other ? own * v[i][j][k] : own;
            else
                v[i][j][k] = other ? own * other[cell] : own;
        }
        if (side == 1) scatter_ends(d, &taps, v, held);
    }
}

/* Masses of the plan in the cells of one side, if the shares of cells are multiplied by `other`
   at the other side; null stands for one.

   held: (threads, cells), zero at first; the sum over threads is the result. */
void geonet_plan_marginal(const Plan *plan, int32_t side, const double *other, double *held) {
    const int64_t cells = plan->lattice.cells;
#pragma omp parallel for num_threads(plan->threads) schedule(static) if (plan->threads > 1)
    for (int part = 0; part < plan->threads; part++) {
        const int64_t begin = cells * part / plan->threads, end = cells * (part + 1) / plan->threads;
        double *own = held + part * cells;
        if (plan->d == 1) add_marginal(1, plan, side, other, begin, end, own);
        if (plan->d == 2) add_marginal(2, plan, side, other, begin, end, own);
        if (plan->d == 3) add_marginal(3, plan, side, other, begin, end, own);
    }
}

INLINE double add_products(const int d, const Plan *plan, double *const *means,
                           const double *scale, int64_t begin, int64_t end) {
    const int64_t n = plan->lattice.cells;
    double total = 0;
    Taps taps;
    double v[3][3][3][3];
    for (int64_t p = begin; p < end; p++) {
        if (plan->mass[p] == 0) continue;
        find_taps(d, plan, p, &taps);
        for (int a = 0; a < d; a++) gather_ends(d, &taps, means[1] + a * n, v[a]);
        double product = 0;
        FOR_STARTS(d) {
            int32_t cell;
            double share = start_share(d, &taps, i, j, k, &cell), sum = 0;
            if (scale) share *= scale[cell];
            for (int a = 0; a < d; a++) sum += means[0][a * n + cell] * v[a][i][j][k];
            product += share * sum;
        }
        total += plan->mass[p] * product;
    }
    return total;
}

/* E x.z under the plan, with means of the final positions of the mass of each cell, (d, cells),
   at both ends; those of the target are multiplied by the factors of its cells already. `scale`
   are the factors of the cells of the source, (cells) or null for one. */
double geonet_plan_product(const Plan *plan, double *const *means, const double *scale) {
    const int64_t cells = plan->lattice.cells;
    double totals[MAX_THREADS], total = 0;
#pragma omp parallel for num_threads(plan->threads) schedule(static) if (plan->threads > 1)
    for (int part = 0; part < plan->threads; part++) {
        const int64_t begin = cells * part / plan->threads, end = cells * (part + 1) / plan->threads;
        if (plan->d == 1) totals[part] = add_products(1, plan, means, scale, begin, end);
        if (plan->d == 2) totals[part] = add_products(2, plan, means, scale, begin, end);
        if (plan->d == 3) totals[part] = add_products(3, plan, means, scale, begin, end);
    }
    for (int part = 0; part < plan->threads; part++) total += totals[part];
    return total;
}

/* The cost -reach^2/2 log cos^2(r/reach) of a displacement in cells, its slope over r, and the
   curvature at r + beyond, or at the farthest distance. */
INLINE void find_cost(const int d, const Plan *plan, const int32_t *cells, double beyond,
                      double farthest, double *cost) {
    double square = 0;
    for (int a = 0; a < d; a++) {
        const double x = cells[a] * plan->step[a];
        square += x * x;
    }
    const double r = sqrt(square), s = r / plan->reach;
    const double far = cos((r + beyond < farthest ? r + beyond : farthest) / plan->reach);
    cost[0] = -plan->reach * plan->reach * log(cos(s));
    cost[1] = s > 1e-8 ? tan(s) / s : 1;
    cost[2] = 1 / (far * far);
}

INLINE double add_costs(const int d, const Plan *plan, const double *const *scales,
                        const double *const *shifts, const double *const *spreads, double beyond,
                        double farthest, int64_t begin, int64_t end) {
    const Grid *grid = &plan->lattice;
    const int corners = 1 << d;
    double total = 0;
    for (int64_t p = begin; p < end; p++) {
        if (plan->mass[p] == 0) continue;
        int32_t start[3], move[3];
        double t[3], f[3], near[8][3], sum = 0;
        for (int a = 0; a < d; a++) {
            const float x = plan->start[a * grid->cells + p];
            const float y = plan->displacement[a * grid->cells + p];
            start[a] = (int32_t)x, move[a] = (int32_t)floorf(y);
            t[a] = x - (float)start[a], f[a] = y - (float)move[a];
        }
        for (int c = 0; c < corners; c++) {
            int32_t cells[3];
            for (int a = 0; a < d; a++) cells[a] = move[a] + (c >> a & 1);
            find_cost(d, plan, cells, beyond, farthest, near[c]);
        }
        for (int b = 0; b < corners * corners; b++) {
            const int up = b % corners, more = b / corners;
            int64_t from = 0, to = 0;
            int32_t cells[3], is_clamped = 0;
            double share = 1, own[3], slope = 0, product = 0;
            for (int a = 0; a < d; a++) {
                const int32_t n = grid->shape[3 - d + a], i = start[a] + (up >> a & 1);
                const int32_t first = clamp_index(i, n);
                const int32_t last = clamp_index(i + move[a] + (more >> a & 1), n);
                share *= (up >> a & 1 ? t[a] : 1 - t[a]) * (more >> a & 1 ? f[a] : 1 - f[a]);
                cells[a] = last - first;
                is_clamped |= cells[a] != move[a] + (more >> a & 1);
                from = from * n + first, to = to * n + last;
            }
            if (scales[0]) share *= scales[0][from];
            if (scales[1]) share *= scales[1][to];
            if (share == 0) continue;
            if (is_clamped) find_cost(d, plan, cells, beyond, farthest, own);
            const double *cost = is_clamped ? own : near[more];
            for (int a = 0; a < d; a++) {
                const double first = shifts[0][a * grid->cells + from];
                const double last = shifts[1][a * grid->cells + to];
                slope += cells[a] * plan->step[a] * (last - first);
                product += first * last;
            }
            const double spread = spreads[0][from] + spreads[1][to] - 2 * product;
            sum += share * (cost[0] + cost[1] * slope + 0.5 * cost[2] * spread);
        }
        total += plan->mass[p] * sum;
    }
    return total;
}

/* Upper bound of the cost of Wasserstein-Fisher-Rao transport under the plan if the mass of every
   cell of source and target moves on by random distances, by at most `beyond` together: means of
   these displacements, shifts (d, cells), and of their squares, spreads (cells). No distance exceeds
   `farthest`. scales: factors of the cells of source and target, or null for one. */
double geonet_plan_cost(const Plan *plan, const double *const *scales, const double *const *shifts,
                        const double *const *spreads, double beyond, double farthest) {
    const int64_t cells = plan->lattice.cells;
    double totals[MAX_THREADS], total = 0;
#pragma omp parallel for num_threads(plan->threads) schedule(static) if (plan->threads > 1)
    for (int part = 0; part < plan->threads; part++) {
        const int64_t a = cells * part / plan->threads, b = cells * (part + 1) / plan->threads;
        if (plan->d == 1)
            totals[part] = add_costs(1, plan, scales, shifts, spreads, beyond, farthest, a, b);
        if (plan->d == 2)
            totals[part] = add_costs(2, plan, scales, shifts, spreads, beyond, farthest, a, b);
        if (plan->d == 3)
            totals[part] = add_costs(3, plan, scales, shifts, spreads, beyond, farthest, a, b);
    }
    for (int part = 0; part < plan->threads; part++) total += totals[part];
    return total;
}

/* ---- repair of a marginal: flow between neighbours along the descent of a potential */

/* The rows around a row of the lattice along its leading axes; the row itself at the faces. */
INLINE void neighbour_rows(const int d, const Grid *grid, int64_t row, int64_t *around) {
    const int32_t i = (int32_t)(row / grid->shape[1]), j = (int32_t)(row % grid->shape[1]);
    for (int up = 0; up < 2; up++) {
        const int32_t step = up ? 1 : -1;
        if (d == 3)
            around[up] = (int64_t)clamp_index(i + step, grid->shape[0]) * grid->shape[1] + j;
        if (d > 1)
            around[2 * (d - 2) + up] =
                (int64_t)i * grid->shape[1] + clamp_index(j + step, grid->shape[1]);
    }
}

/* Largest flow out of a cell that its mass permits, over the flow of the potential, divided by
   its mass: shares of the mass are this rate times the descent to a neighbour. */
INLINE void set_rates(const int d, const Plan *plan, const float *potential, const double *held,
                      int64_t row, double *rate) {
    const Grid *grid = &plan->lattice;
    const int32_t n = grid->shape[2];
    int64_t around[4] = {row, row, row, row};
    neighbour_rows(d, grid, row, around);
    const float *p = potential + row * n;
#pragma omp simd
    for (int32_t k = 0; k < n; k++) {
        double outflow = 0;
        for (int a = 0; a < d - 1; a++)
            for (int up = 0; up < 2; up++) {
                const double descent = (double)p[k] - potential[around[2 * a + up] * n + k];
                outflow += (descent > 0 ? descent : 0) / (plan->step[a] * plan->step[a]);
            }
        const double before = k > 0 ? (double)p[k] - p[k - 1] : 0;
        const double after = k + 1 < n ? (double)p[k] - p[k + 1] : 0;
        outflow += ((before > 0 ? before : 0) + (after > 0 ? after : 0)) /
                   (plan->step[d - 1] * plan->step[d - 1]);
        const double mass = held[row * n + k], most = outflow > mass ? outflow : mass;
        rate[row * n + k] = mass > 0 ? 1 / most : 0;
    }
}

/* Add what flows between a cell i and its neighbour j: to masses, as seen from i, or to the
   mean of what starts in i. */
INLINE double exchange(double descent, double own_rate, double rate, double own, double other,
                       int is_pull) {
    const double share = (descent > 0 ? descent : 0) * own_rate;
    if (is_pull) return share * (other - own);
    return (descent < 0 ? -descent : 0) * rate * other - share * own;
}

/* One round of flow for a row of values: masses are pushed, means are pulled back. */
INLINE void flow_row(const int d, const Plan *plan, const float *potential, const double *rate,
                     const double *values, double *result, int64_t row, const int is_pull) {
    const Grid *grid = &plan->lattice;
    const int32_t n = grid->shape[2];
    int64_t around[4] = {row, row, row, row};
    neighbour_rows(d, grid, row, around);
    const float *p = potential + row * n;
    const double *v = values + row * n, *r = rate + row * n;
    double *to = result + row * n;
    for (int32_t k = 0; k < n; k++) to[k] = v[k];
    for (int a = 0; a < d - 1; a++)
        for (int up = 0; up < 2; up++) {
            const int64_t there = around[2 * a + up] * n;
            const double weight = 1 / (plan->step[a] * plan->step[a]);
#pragma omp simd
            for (int32_t k = 0; k < n; k++)
                to[k] += exchange(weight * ((double)p[k] - potential[there + k]), r[k],
                                  rate[there + k], v[k], values[there + k], is_pull);
        }
    const double weight = 1 / (plan->step[d - 1] * plan->step[d - 1]);
#pragma omp simd
    for (int32_t k = 0; k < n - 1; k++)
        to[k] += exchange(weight * ((double)p[k] - p[k + 1]), r[k], r[k + 1], v[k], v[k + 1],
                          is_pull);
#pragma omp simd
    for (int32_t k = 1; k < n; k++)
        to[k] += exchange(weight * ((double)p[k] - p[k - 1]), r[k], r[k - 1], v[k], v[k - 1],
                          is_pull);
}

INLINE void flow_rows(const int d, const Plan *plan, const float *potential, const double *held,
                      const double *means, double *rate, double *result) {
    const int64_t rows = plan->lattice.cells / plan->lattice.shape[2], cells = plan->lattice.cells;
#pragma omp parallel for num_threads(plan->threads) schedule(static) if (plan->threads > 1)
    for (int64_t row = 0; row < rows; row++) set_rates(d, plan, potential, held, row, rate);
#pragma omp parallel for num_threads(plan->threads) schedule(static) if (plan->threads > 1)
    for (int64_t row = 0; row < rows; row++) {
        if (!means) flow_row(d, plan, potential, rate, held, result, row, 0);
        for (int a = 0; means && a < d; a++)
            flow_row(d, plan, potential, rate, means + a * cells, result + a * cells, row, 1);
    }
}

/* Push masses of cells (cells), or pull means of their final positions (d, cells), through one
   round of flow. rate: scratch, (cells). */
void geonet_plan_flow(const Plan *plan, const float *potential, const double *held,
                      const double *means, double *rate, double *result) {
    if (plan->d == 1) flow_rows(1, plan, potential, held, means, rate, result);
    if (plan->d == 2) flow_rows(2, plan, potential, held, means, rate, result);
    if (plan->d == 3) flow_rows(3, plan, potential, held, means, rate, result);
}

/* ---- repair of a marginal: blocks of 2, 4, 8, ... cells per axis */

#define BLOCK_LEVELS 32

/* Blocks of one size. */
typedef struct {
    Grid grid;
    double *surplus; /* mass that is too much, (cells) */
    double *deficit; /* mass that is missing, and its positions times mass, (cells, d + 1) */
} BlockLevel;

INLINE Grid halve(Grid grid) {
    for (int a = 0; a < 3; a++) grid.shape[a] = (grid.shape[a] + 1) / 2;
    grid.cells = (int64_t)grid.shape[0] * grid.shape[1] * grid.shape[2];
    return grid;
}

/* Number of doubles of scratch memory of `geonet_plan_blocks`. */
int64_t geonet_plan_blocks_size(const Plan *plan) {
    int64_t total = 0;
    Grid grid = plan->lattice;
    do {
        grid = halve(grid);
        total += grid.cells * (plan->d + 2);
    } while (grid.cells > 1);
    return total;
}

/* First block of the next level for a row of cells. */
INLINE int64_t parent_row(const Grid *grid, const Grid *coarse, int64_t row) {
    const int64_t i = row / grid->shape[1] / 2, j = row % grid->shape[1] / 2;
    return (i * coarse->shape[1] + j) * coarse->shape[2];
}

/* Let the surplus of each block meet its deficits; what is left goes to the next level. Then
   `surplus` is the share that meets deficits, and `deficit` their mean position. */
static void match_blocks(int d, BlockLevel *level, BlockLevel *coarse) {
    const Grid *grid = &level->grid;
    for (int64_t i = 0; i < grid->cells; i++) {
        double *deficit = level->deficit + i * (d + 1);
        const double surplus = level->surplus[i], room = deficit[0];
        const double moved = surplus < room ? surplus : room;
        if (coarse) {
            const int64_t j = parent_row(grid, &coarse->grid, i / grid->shape[2]) +
                              i % grid->shape[2] / 2;
            const double rest = room > 0 ? 1 - moved / room : 0;
            coarse->surplus[j] += surplus - moved;
            for (int k = 0; k < d + 1; k++) coarse->deficit[j * (d + 1) + k] += rest * deficit[k];
        }
        level->surplus[i] = surplus > 0 ? moved / surplus : 0;
        for (int k = 1; k < d + 1; k++) deficit[k] = room > 0 ? deficit[k] / room : 0;
    }
}

/* Centre of the first cell of a row, along all axes. */
INLINE void find_row_centre(const int d, const Plan *plan, int64_t row, double *centre) {
    const int64_t all[3] = {row / plan->lattice.shape[1], row % plan->lattice.shape[1], 0};
    for (int a = 0; a < d; a++) centre[a] = ((double)all[3 - d + a] + 0.5) * plan->step[a];
}

/* Add surplus and deficits of the cells to the smallest blocks. Each thread has its own rows of
   blocks. */
INLINE void collect_cells(const int d, const Plan *plan, const double *held, const double *required,
                          BlockLevel *blocks) {
    const Grid *grid = &plan->lattice, *coarse = &blocks->grid;
    const int32_t n = grid->shape[2];
    const int64_t rows = (int64_t)coarse->shape[0] * coarse->shape[1];
#pragma omp parallel for num_threads(plan->threads) schedule(static) if (plan->threads > 1)
    for (int64_t block = 0; block < rows; block++)
        for (int child = 0; child < 4; child++) {
            const int64_t i = block / coarse->shape[1] * 2 + child / 2;
            const int64_t j = block % coarse->shape[1] * 2 + child % 2;
            if (i >= grid->shape[0] || j >= grid->shape[1]) continue;
            const int64_t row = i * grid->shape[1] + j;
            double centre[3];
            find_row_centre(d, plan, row, centre);
            for (int32_t k = 0; k < n; k++) {
                const double excess = held[row * n + k] - required[row * n + k];
                const double surplus = excess > 0 ? excess : 0, missing = surplus - excess;
                const int64_t to = block * coarse->shape[2] + k / 2;
                double *deficit = blocks->deficit + to * (d + 1);
                centre[d - 1] = (k + 0.5) * plan->step[d - 1];
                blocks->surplus[to] += surplus;
                deficit[0] += missing;
                for (int a = 0; a < d; a++) deficit[a + 1] += missing * centre[a];
            }
        }
}

/* Means of final positions from the goals of the smallest blocks. */
INLINE void set_means(const int d, const Plan *plan, const double *held, const double *required,
                      const BlockLevel *blocks, double *means) {
    const Grid *grid = &plan->lattice;
    const int32_t n = grid->shape[2];
#pragma omp parallel for num_threads(plan->threads) schedule(static) if (plan->threads > 1)
    for (int64_t row = 0; row < grid->cells / n; row++) {
        const int64_t parent = parent_row(grid, &blocks->grid, row);
        double centre[3];
        find_row_centre(d, plan, row, centre);
        for (int32_t k = 0; k < n; k++) {
            const int64_t i = row * n + k;
            const double *goal = blocks->deficit + (parent + k / 2) * (d + 1) + 1;
            const double share = held[i] > required[i] ? (held[i] - required[i]) / held[i] : 0;
            centre[d - 1] = (k + 0.5) * plan->step[d - 1];
            for (int a = 0; a < d; a++)
                means[a * grid->cells + i] = centre[a] + share * (goal[a] - centre[a]);
        }
    }
}

/* Mean final position of the mass of each cell, (d, cells), if surplus goes to deficits of the
   smallest block that has room for it.

   scratch: geonet_plan_blocks_size doubles. */
void geonet_plan_blocks(const Plan *plan, const double *held, const double *required, double *means,
                        double *scratch) {
    const int d = plan->d;
    BlockLevel levels[BLOCK_LEVELS];
    int count = 0;
    memset(scratch, 0, sizeof(double) * (size_t)geonet_plan_blocks_size(plan));
    do {
        BlockLevel *level = &levels[count];
        level->grid = halve(count ? levels[count - 1].grid : plan->lattice);
        level->surplus = scratch;
        level->deficit = scratch + level->grid.cells;
        scratch += level->grid.cells * (d + 2);
    } while (levels[count++].grid.cells > 1);
    if (d == 1) collect_cells(1, plan, held, required, &levels[0]);
    if (d == 2) collect_cells(2, plan, held, required, &levels[0]);
    if (d == 3) collect_cells(3, plan, held, required, &levels[0]);
    for (int l = 0; l < count; l++)
        match_blocks(d, &levels[l], l + 1 < count ? &levels[l + 1] : NULL);
    for (int l = count - 2; l >= 0; l--) /* what meets no deficit goes where the parent's goes */
        for (int64_t i = 0; i < levels[l].grid.cells; i++) {
            const Grid *own = &levels[l].grid, *coarse = &levels[l + 1].grid;
            const int64_t j = parent_row(own, coarse, i / own->shape[2]) + i % own->shape[2] / 2;
            const double share = levels[l].surplus[i];
            double *goal = levels[l].deficit + i * (d + 1);
            for (int k = 1; k < d + 1; k++)
                goal[k] = share * goal[k] + (1 - share) * levels[l + 1].deficit[j * (d + 1) + k];
        }
    if (d == 1) set_means(1, plan, held, required, &levels[0], means);
    if (d == 2) set_means(2, plan, held, required, &levels[0], means);
    if (d == 3) set_means(3, plan, held, required, &levels[0], means);
}

/* ---- values of a potential */

/* Values of a spline at lattice points first + k step, both in its cells, along each axis: the
   last axis of (outer, from, inner) is kept, the middle one becomes `to` points. */
void geonet_spline_axis(const double *coefficients, double *values, int64_t outer, int64_t inner,
                        int32_t from, int32_t to, double first, double step, int32_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t k = 0; k < outer * to; k++) {
        double w[3][3];
        const double upper = from, x = first + step * (double)(k % to);
        const int32_t cell = spline_weights(x < 0 ? 0 : x < upper ? x : upper, from, w);
        const double *block = coefficients + k / to * from * inner;
        const double *before = block + clamp_index(cell - 1, from) * inner;
        const double *here = block + cell * inner;
        const double *after = block + clamp_index(cell + 1, from) * inner;
        double *row = values + k * inner;
#pragma omp simd
        for (int64_t i = 0; i < inner; i++)
            row[i] = w[0][0] * before[i] + w[0][1] * here[i] + w[0][2] * after[i];
    }
}

/* ---- c-transform with any cost that grows with the distance */

/* Points of two lattices with equal spacing, in blocks. Missing axes come first. */
typedef struct {
    int32_t from[3], to[3]; /* points along each axis */
    int32_t block[3]; /* points of a block */
    int32_t threads;
    const double *cost; /* of the offsets -(from - 1) ... to - 1, (from + to - 1) along each axis */
    const double *least; /* least cost between blocks, likewise for the numbers of blocks */
} Radial;

INLINE int32_t count_blocks(int32_t n, int32_t size) { return (n + size - 1) / size; }

typedef struct {
    double bound;
    int64_t block;
} Candidate;

static int compare_candidates(const void *a, const void *b) {
    const double x = ((const Candidate *)a)->bound, y = ((const Candidate *)b)->bound;
    return x < y ? -1 : x > y;
}

/* First and last point of a block along each axis, from its number. */
INLINE void find_block(const int32_t *points, const int32_t *size, int64_t block, int32_t *first,
                       int32_t *last) {
    for (int a = 2; a >= 0; a--) {
        const int32_t count = count_blocks(points[a], size[a]);
        first[a] = (int32_t)(block % count) * size[a];
        last[a] = first[a] + size[a] < points[a] ? first[a] + size[a] : points[a];
        block /= count;
    }
}

/* Lower the results of one block by the values of another; return the largest result. */
static double meet_blocks(const Radial *radial, const double *values, const int32_t *first,
                          const int32_t *last, int64_t block, double *result) {
    const int32_t *from = radial->from, *to = radial->to;
    const int64_t width = from[2] + to[2] - 1, height = from[1] + to[1] - 1;
    int32_t begin[3], end[3];
    double largest = -INFINITY;
    find_block(from, radial->block, block, begin, end);
    for (int32_t i = first[0]; i < last[0]; i++)
        for (int32_t j = first[1]; j < last[1]; j++) {
            double *row = result + ((int64_t)i * to[1] + j) * to[2];
            for (int32_t a = begin[0]; a < end[0]; a++)
                for (int32_t b = begin[1]; b < end[1]; b++) {
                    const double *own = values + ((int64_t)a * from[1] + b) * from[2];
                    const double *costs = radial->cost + ((i - a + from[0] - 1) * height + j - b +
                                                          from[1] - 1) * width + from[2] - 1;
                    for (int32_t c = begin[2]; c < end[2]; c++) {
                        const double value = own[c];
                        if (!(value < INFINITY)) continue;
#pragma omp simd
                        for (int32_t k = first[2]; k < last[2]; k++) {
                            const double sum = value + costs[k - c];
                            row[k] = sum < row[k] ? sum : row[k];
                        }
                    }
                }
            for (int32_t k = first[2]; k < last[2]; k++)
                largest = row[k] > largest ? row[k] : largest;
        }
    return largest;
}

/* Minima over y of values(y) + cost(x - y) for every x. A block of y is skipped if its least value
   and the least cost to a block of x exceed the minima that are known there already.

   lows: scratch, least value of each block of y; candidates: (threads, blocks of y). */
void geonet_radial_transform(const Radial *radial, const double *values, double *lows,
                             Candidate *candidates, double *result) {
    int64_t blocks = 1, targets = 1;
    int32_t counts[3], other[3];
    for (int a = 0; a < 3; a++) {
        counts[a] = count_blocks(radial->from[a], radial->block[a]);
        other[a] = count_blocks(radial->to[a], radial->block[a]);
        blocks *= counts[a], targets *= other[a];
    }
    for (int64_t block = 0; block < blocks; block++) {
        int32_t first[3], last[3];
        find_block(radial->from, radial->block, block, first, last);
        lows[block] = INFINITY;
        for (int32_t i = first[0]; i < last[0]; i++)
            for (int32_t j = first[1]; j < last[1]; j++)
                for (int32_t k = first[2]; k < last[2]; k++) {
                    const double value =
                        values[((int64_t)i * radial->from[1] + j) * radial->from[2] + k];
                    lows[block] = value < lows[block] ? value : lows[block];
                }
    }
#pragma omp parallel for num_threads(radial->threads) schedule(static) if (radial->threads > 1)
    for (int part = 0; part < radial->threads; part++) {
        Candidate *list = candidates + part * blocks;
        for (int64_t t = targets * part / radial->threads;
             t < targets * (part + 1) / radial->threads; t++) {
            int32_t first[3], last[3];
            find_block(radial->to, radial->block, t, first, last);
            for (int32_t i = first[0]; i < last[0]; i++)
                for (int32_t j = first[1]; j < last[1]; j++)
                    for (int32_t k = first[2]; k < last[2]; k++)
                        result[((int64_t)i * radial->to[1] + j) * radial->to[2] + k] = INFINITY;
            const int32_t own[3] = {first[0] / radial->block[0], first[1] / radial->block[1],
                                    first[2] / radial->block[2]};
            int64_t best = 0, count = 0, block = 0;
            double bound = INFINITY;
            for (int32_t i = 0; i < counts[0]; i++)
                for (int32_t j = 0; j < counts[1]; j++) {
                    const double *row =
                        radial->least +
                        ((int64_t)(own[0] - i + counts[0] - 1) * (counts[1] + other[1] - 1) +
                         own[1] - j + counts[1] - 1) * (counts[2] + other[2] - 1) +
                        own[2] + counts[2] - 1;
                    for (int32_t k = 0; k < counts[2]; k++, block++) {
                        list[block].bound = lows[block] + row[-k];
                        if (list[block].bound < bound) bound = list[best = block].bound;
                    }
                }
            if (!(bound < INFINITY)) continue;
            double largest = meet_blocks(radial, values, first, last, best, result);
            for (block = 0; block < blocks; block++)
                if (list[block].bound < largest && block != best) {
                    list[count].bound = list[block].bound;
                    list[count++].block = block;
                }
            qsort(list, (size_t)count, sizeof(Candidate), compare_candidates);
            for (int64_t c = 0; c < count && list[c].bound < largest; c++)
                largest = meet_blocks(radial, values, first, last, list[c].block, result);
        }
    }
}

const int32_t geonet_bounds_abi[] = {VERSION, sizeof(Plan), sizeof(Radial)};
