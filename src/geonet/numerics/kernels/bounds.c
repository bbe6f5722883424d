/* A transport plan between two densities from a potential at t = 1/2, and its cost.

   The plan lives on a lattice of cells. The cell y at t = 1/2 carries a mass from y - grad u/2
   to y + grad u/2; the mass is split linearly between the 2^d cell centres around either
   position. bounds.py documents the method and has the same in torch. */

#include "quadratic.h"

#define VERSION 1 /* increment with every change of the interface to bounds.py */

typedef struct {
    int32_t d, threads;
    Grid potential; /* cells of the potential */
    Grid lattice; /* cells of the plan */
    double step[3]; /* side lengths of a cell of the plan, for the axes of the lattice */
    const double *masses[2]; /* of source and target in the cells of the plan */
    int32_t *cell[2]; /* first of the 2^d cells of each end, (cells) */
    float *fraction[2]; /* position between the cells along each axis, (d, cells) */
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

/* Sum over the 2^d cells of an end of a point: share times values. */
INLINE double gather(const int d, const Grid *grid, const double *values, int32_t cell,
                     const double *t) {
    const int32_t last = grid->shape[2] > 1, middle = grid->shape[1] > 1 ? grid->shape[2] : 0;
    const double *v = values + cell;
    double low = v[0] + t[d - 1] * (v[last] - v[0]);
    if (d == 1) return low;
    double high = v[middle] + t[d - 1] * (v[middle + last] - v[middle]);
    low += t[d - 2] * (high - low);
    if (d == 2) return low;
    const double *u = v + (grid->shape[0] > 1 ? grid->shape[1] * grid->shape[2] : 0);
    double above = u[0] + t[2] * (u[last] - u[0]);
    high = u[middle] + t[2] * (u[middle + last] - u[middle]);
    above += t[1] * (high - above);
    return low + t[0] * (above - low);
}

/* Transpose of `gather`. */
INLINE void scatter(const int d, const Grid *grid, double *values, int32_t cell, const double *t,
                    double mass) {
    const int32_t last = grid->shape[2] > 1, middle = grid->shape[1] > 1 ? grid->shape[2] : 0;
    const int32_t first = grid->shape[0] > 1 ? grid->shape[1] * grid->shape[2] : 0;
    for (int a = 0; a < (d == 3 ? 2 : 1); a++) {
        const double plane = d == 3 ? mass * (a ? t[0] : 1 - t[0]) : mass;
        for (int b = 0; b < (d > 1 ? 2 : 1); b++) {
            const double row = d > 1 ? plane * (b ? t[d - 2] : 1 - t[d - 2]) : plane;
            double *v = values + cell + a * first + b * middle;
            v[0] += row * (1 - t[d - 1]);
            v[last] += row * t[d - 1];
        }
    }
}

/* Read the fractions of a point. */
INLINE void read_fractions(const int d, const Plan *plan, int side, int64_t point, double *t) {
    for (int a = 0; a < d; a++) t[a] = plan->fraction[side][a * plan->lattice.cells + point];
}

/* Masses and ends of the points of a slab of the lattice's rows. */
INLINE void place_rows(const int d, Plan *plan, const double *padded, int64_t from, int64_t to) {
    const Grid *grid = &plan->potential, *lattice = &plan->lattice;
    const int32_t n = grid->shape[2], m = lattice->shape[2];
    double *rows = malloc(sizeof(double) * (size_t)(row_count(d) * (n + 2)));
    double ratio[3], pitch[3];
    for (int a = 0; a < d; a++) {
        ratio[a] = (double)grid->shape[3 - d + a] / lattice->shape[3 - d + a];
        pitch[a] = 1 / (plan->step[a] / ratio[a]); /* 1 / side length of a potential cell */
    }
    for (int64_t r = from; r < to; r++) {
        const int32_t i = (int32_t)(r / lattice->shape[1]), j = (int32_t)(r % lattice->shape[1]);
        combine_rows(d, plan, padded, i, j, rows);
        for (int32_t k = 0; k < m; k++) {
            double w[3][3], gradient[3], hessian[6], t[2][3], det[2], rho[2];
            const int32_t index[3] = {i, j, k};
            const int32_t cell = spline_weights((k + 0.5) * ratio[d - 1], n, w);
            evaluate_jet(d, rows, n + 2, cell, w, gradient, hessian);
            for (int a = 0, e = 0; a < d; a++)
                for (int b = a; b < d; b++) hessian[e++] *= pitch[a] * pitch[b];
            const int64_t point = r * m + k;
            for (int side = 0; side < 2; side++) {
                const double s = side ? 0.5 : -0.5;
                int64_t at = 0;
                for (int a = 0; a < d; a++) {
                    const int32_t size = lattice->shape[3 - d + a];
                    double x = index[3 - d + a] + s * gradient[a] * pitch[a] / plan->step[a];
                    x = x > 0 ? x : 0;
                    x = x < size - 1 ? x : size - 1;
                    int32_t low = (int32_t)x;
                    low = low < size - 2 ? low : size - 2;
                    low = low > 0 ? low : 0;
                    t[side][a] = plan->fraction[side][a * lattice->cells + point] =
                        (float)(x - low);
                    at = at * size + low;
                }
                plan->cell[side][point] = (int32_t)at;
                det[side] = positive_determinant(d, hessian, s);
                rho[side] =
                    det[side] * gather(d, lattice, plan->masses[side], (int32_t)at, t[side]);
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

INLINE void add_marginal(const int d, const Plan *plan, int side, const double *scale,
                         const double *other, int64_t from, int64_t to, double *held) {
    double t[3];
    for (int64_t p = from; p < to; p++) {
        double mass = plan->mass[p];
        if (mass == 0) continue;
        if (other) {
            read_fractions(d, plan, 1 - side, p, t);
            mass *= gather(d, &plan->lattice, other, plan->cell[1 - side][p], t);
        }
        read_fractions(d, plan, side, p, t);
        scatter(d, &plan->lattice, held, plan->cell[side][p], t, mass);
    }
    for (int64_t i = 0; scale && i < plan->lattice.cells; i++) held[i] *= scale[i];
}

/* Masses that one end of the plan has in the cells, if the shares of cells are multiplied by
   `scale` at this end and by `other` at the other one; null stands for one.

   held: (threads, cells), zero at first; the sum over threads is the result. */
void geonet_plan_marginal(const Plan *plan, int32_t side, const double *scale, const double *other,
                          double *held) {
    const int64_t cells = plan->lattice.cells;
#pragma omp parallel for num_threads(plan->threads) schedule(static) if (plan->threads > 1)
    for (int part = 0; part < plan->threads; part++) {
        const int64_t from = cells * part / plan->threads, to = cells * (part + 1) / plan->threads;
        double *own = held + part * cells;
        if (plan->d == 1) add_marginal(1, plan, side, scale, other, from, to, own);
        if (plan->d == 2) add_marginal(2, plan, side, scale, other, from, to, own);
        if (plan->d == 3) add_marginal(3, plan, side, scale, other, from, to, own);
    }
}

INLINE double add_cost(const int d, const Plan *plan, double *const *moments, double *const *scales,
                       int64_t from, int64_t to) {
    double total = 0;
    const Grid *grid = &plan->lattice;
    for (int64_t p = from; p < to; p++) {
        if (plan->mass[p] == 0) continue;
        double t[3], mean[2][5];
        for (int side = 0; side < 2; side++) {
            read_fractions(d, plan, side, p, t);
            for (int k = 0; k < d + 1; k++)
                mean[side][k] =
                    gather(d, grid, moments[side] + k * grid->cells, plan->cell[side][p], t);
            mean[side][d + 1] =
                scales[side] ? gather(d, grid, scales[side], plan->cell[side][p], t) : 1;
        }
        double cost = mean[0][d] * mean[1][d + 1] + mean[1][d] * mean[0][d + 1];
        for (int a = 0; a < d; a++) cost -= 2 * mean[0][a] * mean[1][a];
        total += plan->mass[p] * cost;
    }
    return total;
}

/* Cost of the plan, with E x and E|x|^2 of the final position of the mass of each cell, times
   the scale of the cell: moments (d + 1, cells) for both ends. */
double geonet_plan_cost(const Plan *plan, double *const *moments, double *const *scales) {
    const int64_t cells = plan->lattice.cells;
    double totals[MAX_THREADS], total = 0;
#pragma omp parallel for num_threads(plan->threads) schedule(static) if (plan->threads > 1)
    for (int part = 0; part < plan->threads; part++) {
        const int64_t from = cells * part / plan->threads, to = cells * (part + 1) / plan->threads;
        if (plan->d == 1) totals[part] = add_cost(1, plan, moments, scales, from, to);
        if (plan->d == 2) totals[part] = add_cost(2, plan, moments, scales, from, to);
        if (plan->d == 3) totals[part] = add_cost(3, plan, moments, scales, from, to);
    }
    for (int part = 0; part < plan->threads; part++) total += totals[part];
    return total;
}

/* ---- repair of a marginal: flow between neighbours */

/* Shares of the mass of a cell that flow to its neighbours, (2d), along the descent of a
   potential; `stride` and `at` are those of the axes of the grid. */
INLINE void neighbour_shares(const int d, const Plan *plan, const float *potential,
                             const double *held, int64_t i, const int32_t *at,
                             const int64_t *stride, double *share) {
    double outflow = 0;
    for (int a = 0; a < d; a++) {
        const double weight = 1 / (plan->step[a] * plan->step[a]);
        for (int up = 0; up < 2; up++) {
            const int inside = up ? at[a] + 1 < plan->lattice.shape[3 - d + a] : at[a] > 0;
            const int64_t j = i + (inside ? (up ? stride[a] : -stride[a]) : 0);
            const double flow = weight * ((double)potential[i] - potential[j]);
            share[2 * a + up] = flow > 0 ? flow : 0;
            outflow += share[2 * a + up];
        }
    }
    const double most = outflow > held[i] ? outflow : held[i];
    for (int k = 0; k < 2 * d; k++) share[k] = held[i] > 0 ? share[k] / most : 0;
}

/* One round of flow in rows from ... to: if `moments`, pull E x and E|x|^2 (d + 1, cells) back
   to `result`; else push `held` to `result`, as seen from the receiving cells. */
INLINE void flow_rows(const int d, const Plan *plan, const float *potential, const double *held,
                      const double *moments, double *result, int64_t from, int64_t to) {
    const Grid *grid = &plan->lattice;
    int64_t stride[3];
    for (int a = d - 1, size = 1; a >= 0; size *= grid->shape[3 - d + a], a--) stride[a] = size;
    for (int64_t r = from; r < to; r++)
        for (int32_t k = 0; k < grid->shape[2]; k++) {
            const int32_t all[3] = {(int32_t)(r / grid->shape[1]), (int32_t)(r % grid->shape[1]),
                                    k};
            const int32_t *at = all + 3 - d;
            const int64_t i = r * grid->shape[2] + k;
            double share[6];
            neighbour_shares(d, plan, potential, held, i, at, stride, share);
            if (moments) {
                for (int c = 0; c < d + 1; c++) {
                    const double *own = moments + c * grid->cells + i;
                    double value = *own;
                    for (int a = 0; a < d; a++)
                        for (int up = 0; up < 2; up++)
                            if (share[2 * a + up] > 0)
                                value += share[2 * a + up] * (own[up ? stride[a] : -stride[a]] - *own);
                    result[c * grid->cells + i] = value;
                }
                continue;
            }
            double mass = held[i];
            for (int a = 0; a < d; a++)
                for (int up = 0; up < 2; up++) {
                    mass -= share[2 * a + up] * held[i];
                    const int inside = up ? at[a] + 1 < grid->shape[3 - d + a] : at[a] > 0;
                    if (!inside) continue;
                    const int64_t j = i + (up ? stride[a] : -stride[a]);
                    if (!(held[j] > 0) || !(potential[j] > potential[i])) continue;
                    int32_t there[3] = {at[0], d > 1 ? at[1] : 0, d > 2 ? at[2] : 0};
                    double theirs[6];
                    there[a] += up ? 1 : -1;
                    neighbour_shares(d, plan, potential, held, j, there, stride, theirs);
                    mass += theirs[2 * a + 1 - up] * held[j];
                }
            result[i] = mass;
        }
}

/* Push masses of cells, or pull moments of their final positions, through one round of flow. */
void geonet_plan_flow(const Plan *plan, const float *potential, const double *held,
                      const double *moments, double *result) {
    const int64_t rows = plan->lattice.cells / plan->lattice.shape[2];
#pragma omp parallel for num_threads(plan->threads) schedule(static) if (plan->threads > 1)
    for (int part = 0; part < plan->threads; part++) {
        const int64_t from = rows * part / plan->threads, to = rows * (part + 1) / plan->threads;
        if (plan->d == 1) flow_rows(1, plan, potential, held, moments, result, from, to);
        if (plan->d == 2) flow_rows(2, plan, potential, held, moments, result, from, to);
        if (plan->d == 3) flow_rows(3, plan, potential, held, moments, result, from, to);
    }
}

/* ---- repair of a marginal: blocks of 2, 4, 8, ... cells per axis */

#define BLOCK_LEVELS 32

typedef struct {
    Grid grid;
    double *surplus; /* mass that is too much, (cells) */
    double *deficit; /* mass that is missing, and its moments E x and E|x|^2, (d + 2, cells) */
    double *goal; /* E x and E|x|^2 of the final position of surplus mass, (d + 1, cells) */
} BlockLevel;

/* Number of doubles of scratch memory of `geonet_plan_blocks`. */
int64_t geonet_plan_blocks_size(const Plan *plan) {
    int32_t shape[3];
    memcpy(shape, plan->lattice.shape, sizeof shape);
    int64_t total = 0;
    for (;;) {
        const int64_t cells = (int64_t)shape[0] * shape[1] * shape[2];
        total += cells * (2 * plan->d + 4);
        if (cells == 1) return total;
        for (int a = 0; a < 3; a++) shape[a] = (shape[a] + 1) / 2;
    }
}

/* The block of the next level that contains a cell. */
INLINE int64_t parent_of(const Grid *grid, const Grid *coarse, int64_t i) {
    const int64_t row = i / grid->shape[2];
    const int64_t a = row / grid->shape[1] / 2, b = row % grid->shape[1] / 2;
    return (a * coarse->shape[1] + b) * coarse->shape[2] + i % grid->shape[2] / 2;
}

/* Let surplus of each block meet deficits of the block; the rest goes to the next level. The
   share of the surplus that meets deficits replaces `surplus`, where they lie goes to `goal`. */
static void match_blocks(int d, BlockLevel *level, BlockLevel *coarse) {
    const int64_t cells = level->grid.cells;
    for (int64_t i = 0; i < cells; i++) {
        const double surplus = level->surplus[i], room = level->deficit[i];
        const double moved = surplus < room ? surplus : room;
        const double rest = room > 0 ? 1 - moved / room : 0;
        for (int k = 0; k < d + 1; k++)
            level->goal[k * cells + i] = room > 0 ? level->deficit[(k + 1) * cells + i] / room : 0;
        if (coarse) {
            const int64_t j = parent_of(&level->grid, &coarse->grid, i);
            coarse->surplus[j] += surplus - moved;
            for (int k = 0; k < d + 2; k++)
                coarse->deficit[k * coarse->grid.cells + j] +=
                    rest * level->deficit[k * cells + i];
        }
        level->surplus[i] = surplus > 0 ? moved / surplus : 0;
    }
}

/* E x and E|x|^2 of the final position of the mass of each cell, (d + 1, cells), if surplus
   goes to deficits of the smallest block that has room for it.

   scratch: geonet_plan_blocks_size doubles. */
void geonet_plan_blocks(const Plan *plan, const double *held, const double *required,
                        double *moments, double *scratch) {
    const int d = plan->d;
    BlockLevel levels[BLOCK_LEVELS];
    int count = 0;
    for (Grid grid = plan->lattice;; count++) {
        BlockLevel *level = &levels[count];
        level->grid = grid;
        level->surplus = scratch;
        level->deficit = level->surplus + grid.cells;
        level->goal = level->deficit + (d + 2) * grid.cells;
        scratch = level->goal + (d + 1) * grid.cells;
        if (count) memset(level->surplus, 0, sizeof(double) * (size_t)(grid.cells * (d + 3)));
        if (grid.cells == 1) break;
        for (int a = 0; a < 3; a++) grid.shape[a] = (grid.shape[a] + 1) / 2;
        grid.cells = (int64_t)grid.shape[0] * grid.shape[1] * grid.shape[2];
    }
    const Grid *grid = &plan->lattice;
    const int64_t cells = grid->cells;
    for (int64_t i = 0; i < cells; i++) {
        const int64_t row = i / grid->shape[2];
        const int64_t all[3] = {row / grid->shape[1], row % grid->shape[1], i % grid->shape[2]};
        const double excess = held[i] - required[i];
        double square = 0;
        levels[0].surplus[i] = excess > 0 ? excess : 0;
        levels[0].deficit[i] = excess < 0 ? -excess : 0;
        for (int a = 0; a < d; a++) {
            const double x = ((double)all[3 - d + a] + 0.5) * plan->step[a];
            square += x * x;
            moments[a * cells + i] = x;
            levels[0].deficit[(a + 1) * cells + i] = levels[0].deficit[i] * x;
        }
        moments[d * cells + i] = square;
        levels[0].deficit[(d + 1) * cells + i] = levels[0].deficit[i] * square;
    }
    for (int l = 0; l <= count; l++)
        match_blocks(d, &levels[l], l < count ? &levels[l + 1] : NULL);
    for (int l = count - 1; l >= 0; l--) { /* what does not meet a deficit goes to the parent's */
        BlockLevel *level = &levels[l], *coarse = &levels[l + 1];
        for (int64_t i = 0; i < level->grid.cells; i++) {
            const int64_t j = parent_of(&level->grid, &coarse->grid, i);
            const double share = level->surplus[i];
            for (int k = 0; k < d + 1; k++) {
                double *goal = &level->goal[k * level->grid.cells + i];
                *goal = share * *goal + (1 - share) * coarse->goal[k * coarse->grid.cells + j];
            }
        }
    }
    for (int64_t i = 0; i < cells; i++) {
        const double share = held[i] > required[i] ? (held[i] - required[i]) / held[i] : 0;
        for (int k = 0; k < d + 1; k++)
            moments[k * cells + i] +=
                share * (levels[0].goal[k * cells + i] - moments[k * cells + i]);
    }
}

const int32_t geonet_bounds_abi[] = {VERSION, sizeof(Plan)};
