/* What a potential in quadratic splines makes of two densities: at t = 1/2, and in frames.

   With v = grad u, and densities that are constant in their cells,

       rho0(y) = mu0(y - v/2) det(I - D2u/2)        rho1(y) = mu1(y + v/2) det(I + D2u/2),

   where mu is averaged over the image of the half-cell, a box. Where the map folds the determinant
   counts as negative: then the mass of rho stays one, and what folds is pushed apart again.
   halfway.py and carried.py do the same in torch. */

#include "quadratic.h"

#define VERSION 3 /* one more whenever something here changes for elliptic.py */

#define NARROWEST 1e-3f /* cells of a frame */

/* Both ends, relative to uniform on the box. */
typedef struct {
    Grid grid;
    double step[3]; /* sides of a cell, of the axes that there are */
    const float *ends[2]; /* (cells) each */
    double softness; /* the least width, in cells, over which an end is averaged */
} Problem;

/* Of a symmetric matrix m (packed) that is not positive: minus the product of |eigenvalues|, and the
   cofactors with negative eigenvalues set to zero. By Jacobi's rotations. */
static double folded(const int d, const double *m, double *cof) {
    double a[3][3], v[3][3] = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}, w[3] = {1, 1, 1};
    if (d == 1) {
        cof[0] = 1;
        return m[0];
    }
    int e = 0;
    for (int i = 0; i < d; i++)
        for (int j = i; j < d; j++) a[i][j] = a[j][i] = m[e++];
    for (int sweep = 0; sweep < 12; sweep++)
        for (int i = 0; i < d; i++)
            for (int j = i + 1; j < d; j++) {
                if (fabs(a[i][j]) < 1e-14) continue;
                const double theta = (a[j][j] - a[i][i]) / (2 * a[i][j]);
                const double t = (theta >= 0 ? 1 : -1) / (fabs(theta) + sqrt(theta * theta + 1));
                const double c = 1 / sqrt(t * t + 1), s = t * c;
                for (int k = 0; k < d; k++) {
                    const double x = a[k][i], y = a[k][j];
                    a[k][i] = c * x - s * y;
                    a[k][j] = s * x + c * y;
                }
                for (int k = 0; k < d; k++) {
                    const double x = a[i][k], y = a[j][k];
                    a[i][k] = c * x - s * y;
                    a[j][k] = s * x + c * y;
                }
                for (int k = 0; k < d; k++) {
                    const double x = v[k][i], y = v[k][j];
                    v[k][i] = c * x - s * y;
                    v[k][j] = s * x + c * y;
                }
            }
    double det = -1;
    for (int i = 0; i < d; i++) {
        w[i] = a[i][i] > 0 ? a[i][i] : 0;
        det *= fabs(a[i][i]);
    }
    e = 0;
    for (int i = 0; i < d; i++)
        for (int j = i; j < d; j++) {
            double sum = 0;
            for (int k = 0; k < d; k++) {
                double others = 1;
                for (int o = 0; o < d; o++)
                    if (o != k) others *= w[o];
                sum += v[i][k] * v[j][k] * others;
            }
            cof[e++] = sum;
        }
    return det;
}

/* Means of an end over boxes around places, both in cells: the density is constant in each cell, and
   a box is at most a cell wide, so that it meets at most two cells along an axis.

   Cells are counted in 32 bits, for vectors of them. */
INLINE void means_over(const int d, const Grid *grid, const float *values, float place[3][BLOCK],
                       float width[3][BLOCK], int32_t count, float *mean) {
    int32_t at[BLOCK], next[3][BLOCK], stride = 1;
    float way[3][BLOCK];
    for (int axis = d - 1; axis >= 0; axis--) {
        const int32_t n = grid->shape[3 - d + axis];
#pragma omp simd
        for (int32_t j = 0; j < count; j++) {
            const float w = width[axis][j], most = (float)n - w;
            float low = place[axis][j] - 0.5f * w;
            low = low > 0 ? low : 0;
            low = low < most ? low : most;
            int32_t i = (int32_t)low;
            i = i < n - 1 ? i : n - 1;
            const float beyond = (low + w - (float)(i + 1)) / w;
            way[axis][j] = beyond > 0 ? beyond : 0;
            next[axis][j] = i < n - 1 ? stride : 0;
            at[j] = (axis == d - 1 ? 0 : at[j]) + i * stride;
        }
        stride *= n;
    }
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        const int32_t i = at[j], last = next[d - 1][j];
        const float t = way[d - 1][j];
        const float a = values[i] + t * (values[i + last] - values[i]);
        if (d == 1) mean[j] = a;
        if (d > 1) {
            const int32_t k = i + next[d - 2][j];
            const float b = values[k] + t * (values[k + last] - values[k]);
            const float face = a + way[d - 2][j] * (b - a);
            if (d == 2) mean[j] = face;
            if (d == 3) {
                const int32_t l = i + next[0][j], m = k + next[0][j];
                const float e = values[l] + t * (values[l + last] - values[l]);
                const float f = values[m] + t * (values[m + last] - values[m]);
                mean[j] = face + way[0][j] * (e + way[1][j] * (f - e) - face);
            }
        }
    }
}

/* Values, slopes and bends of u along a block of a row, for every leading row of taps. */
INLINE void along(const int d, const double *const *taps, int32_t start, int32_t count,
                  double value[2][9][BLOCK], double slope[2][9][BLOCK], double bend[9][BLOCK]) {
    for (int k = 0; k < rows_of(d); k++) {
        const double *c = taps[k] + start;
        for (int q = 0; q < 2; q++)
#pragma omp simd
            for (int32_t j = 0; j < count; j++) {
                value[q][k][j] = W[0][q][0] * c[j] + W[0][q][1] * c[j + 1] + W[0][q][2] * c[j + 2];
                slope[q][k][j] = W[1][q][0] * c[j] + W[1][q][1] * c[j + 1] + W[1][q][2] * c[j + 2];
            }
#pragma omp simd
        for (int32_t j = 0; j < count; j++) bend[k][j] = c[j] - 2 * c[j + 1] + c[j + 2];
    }
}

/* Gradient and second derivatives (packed) of u at a point of every cell of a block. */
INLINE void derivatives(const int d, double value[2][9][BLOCK], double slope[2][9][BLOCK],
                        double bend[9][BLOCK], const double *step, int p, int q, int32_t count,
                        float gradient[3][BLOCK], float hessian[6][BLOCK]) {
    const double i0 = 1 / step[0], i1 = d > 1 ? 1 / step[1] : 0, i2 = d > 2 ? 1 / step[2] : 0;
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        double g[3] = {0, 0, 0}, s[6] = {0, 0, 0, 0, 0, 0};
        for (int k = 0; k < rows_of(d); k++) {
            const double v = value[q][k][j], l = slope[q][k][j], b = bend[k][j];
            if (d == 1) {
                g[0] += l;
                s[0] += b;
            }
            if (d == 2) {
                g[0] += lead(d, 1, 0, p, k) * v;
                g[1] += lead(d, 0, 0, p, k) * l;
                s[0] += lead(d, 2, 0, p, k) * v;
                s[1] += lead(d, 1, 0, p, k) * l;
                s[2] += lead(d, 0, 0, p, k) * b;
            }
            if (d == 3) {
                g[0] += lead(d, 1, 0, p, k) * v;
                g[1] += lead(d, 0, 1, p, k) * v;
                g[2] += lead(d, 0, 0, p, k) * l;
                s[0] += lead(d, 2, 0, p, k) * v;
                s[1] += lead(d, 1, 1, p, k) * v;
                s[2] += lead(d, 1, 0, p, k) * l;
                s[3] += lead(d, 0, 2, p, k) * v;
                s[4] += lead(d, 0, 1, p, k) * l;
                s[5] += lead(d, 0, 0, p, k) * b;
            }
        }
        gradient[0][j] = (float)(g[0] * i0);
        if (d > 1) gradient[1][j] = (float)(g[1] * i1);
        if (d > 2) gradient[2][j] = (float)(g[2] * i2);
        hessian[0][j] = (float)(s[0] * i0 * i0);
        if (d == 2) {
            hessian[1][j] = (float)(s[1] * i0 * i1);
            hessian[2][j] = (float)(s[2] * i1 * i1);
        }
        if (d == 3) {
            hessian[1][j] = (float)(s[1] * i0 * i1);
            hessian[2][j] = (float)(s[2] * i0 * i2);
            hessian[3][j] = (float)(s[3] * i1 * i1);
            hessian[4][j] = (float)(s[4] * i1 * i2);
            hessian[5][j] = (float)(s[5] * i2 * i2);
        }
    }
}

/* m = I + s D2u (packed), its determinant, and the least of its leading minors: where that is not
   positive the map folds. */
INLINE void stretched(const int d, float s, int32_t count, float hessian[6][BLOCK], float m[6][BLOCK],
                      float *det, float *worst) {
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        if (d == 1) {
            m[0][j] = 1 + s * hessian[0][j];
            det[j] = worst[j] = m[0][j];
        }
        if (d == 2) {
            m[0][j] = 1 + s * hessian[0][j];
            m[1][j] = s * hessian[1][j];
            m[2][j] = 1 + s * hessian[2][j];
            det[j] = m[0][j] * m[2][j] - m[1][j] * m[1][j];
            worst[j] = det[j] < m[0][j] ? det[j] : m[0][j];
        }
        if (d == 3) {
            m[0][j] = 1 + s * hessian[0][j];
            m[1][j] = s * hessian[1][j];
            m[2][j] = s * hessian[2][j];
            m[3][j] = 1 + s * hessian[3][j];
            m[4][j] = s * hessian[4][j];
            m[5][j] = 1 + s * hessian[5][j];
            const float minor = m[0][j] * m[3][j] - m[1][j] * m[1][j];
            det[j] = m[0][j] * (m[3][j] * m[5][j] - m[4][j] * m[4][j]) -
                     m[1][j] * (m[1][j] * m[5][j] - m[4][j] * m[2][j]) +
                     m[2][j] * (m[1][j] * m[4][j] - m[3][j] * m[2][j]);
            worst[j] = det[j] < m[0][j] ? det[j] : m[0][j];
            worst[j] = minor < worst[j] ? minor : worst[j];
        }
    }
}

/* What one end brings to t = 1/2: rho = det(I + s D2u) mu(y + s grad u), and det. Half of mu times
   the cofactors is added to `cof`, and where the map folds mu to `folding`. */
INLINE void brought(const int d, const Problem *problem, const float *mu, float s, int32_t count,
                    float place[3][BLOCK], float gradient[3][BLOCK], float hessian[6][BLOCK],
                    float *rho, float *det, float cof[6][BLOCK], float *folding) {
    float m[6][BLOCK];
    float density[BLOCK], worst[BLOCK], x[3][BLOCK], width[3][BLOCK], least = 1;
    for (int a = 0; a < d; a++) {
        const float scale = s / (float)problem->step[a], softness = (float)problem->softness;
#pragma omp simd
        for (int32_t j = 0; j < count; j++) {
            x[a][j] = place[a][j] + scale * gradient[a][j];
            float w = 0.5f + 0.5f * s * hessian[diagonal_entry(d, a)][j];
            w = w > softness ? w : softness;
            width[a][j] = w < 1 ? w : 1;
        }
    }
    means_over(d, &problem->grid, mu, x, width, count, density);
    stretched(d, s, count, hessian, m, det, worst);
#pragma omp simd reduction(min : least)
    for (int32_t j = 0; j < count; j++) {
        const float half = worst[j] > 0 ? 0.5f * density[j] : 0;
        if (d == 1) cof[0][j] += 0.5f * density[j];
        if (d == 2) {
            cof[0][j] += half * m[2][j];
            cof[1][j] -= half * m[1][j];
            cof[2][j] += half * m[0][j];
        }
        if (d == 3) {
            cof[0][j] += half * (m[3][j] * m[5][j] - m[4][j] * m[4][j]);
            cof[1][j] += half * (m[2][j] * m[4][j] - m[1][j] * m[5][j]);
            cof[2][j] += half * (m[1][j] * m[4][j] - m[2][j] * m[3][j]);
            cof[3][j] += half * (m[0][j] * m[5][j] - m[2][j] * m[2][j]);
            cof[4][j] += half * (m[1][j] * m[2][j] - m[0][j] * m[4][j]);
            cof[5][j] += half * (m[0][j] * m[3][j] - m[1][j] * m[1][j]);
        }
        rho[j] = density[j] * det[j];
        least = worst[j] < least ? worst[j] : least;
    }
    if (least > 0) return;
    for (int32_t j = 0; j < count; j++) {
        if (worst[j] > 0) continue;
        double entry[6], found[6];
        for (int e = 0; e < entries(d); e++) entry[e] = m[e][j];
        det[j] = (float)folded(d, entry, found);
        if (d > 1)
            for (int e = 0; e < entries(d); e++) cof[e][j] += 0.5f * density[j] * (float)found[e];
        rho[j] = density[j] * det[j];
        *folding += density[j];
    }
}

/* Spread what is at the points of a block back to the splines, (2^(d-1), 2, count) to rows of taps. */
INLINE void spread(const int d, float part[4][2][BLOCK], int32_t count, float *const *sums, int32_t start) {
    for (int k = 0; k < rows_of(d); k++) {
        if (!sums[k]) continue;
        float *to = sums[k] + start;
        for (int q = 0; q < 2; q++) {
            float total[BLOCK];
#pragma omp simd
            for (int32_t j = 0; j < count; j++) {
                total[j] = 0;
                for (int p = 0; p < leading_points(d); p++)
                    total[j] += (float)lead(d, 0, 0, p, k) * part[p][q][j];
            }
            for (int l = 0; l < 3; l++)
#pragma omp simd
                for (int32_t j = 0; j < count; j++) to[j + l] += (float)W[0][q][l] * total[j];
        }
    }
}

enum { APART, MASS0, MASS1, ENERGY, GAIN, FOLDING, TOTALS };

/* Add what a block holds to the totals. */
INLINE void count_up(const int d, int p, int q, int32_t count, double value[2][9][BLOCK],
                     float gradient[3][BLOCK], float rho[2][BLOCK], float folding, double share,
                     double *totals) {
    double apart = 0, mass0 = 0, mass1 = 0, energy = 0, gain = 0;
#pragma omp simd reduction(+ : apart, mass0, mass1, energy, gain)
    for (int32_t j = 0; j < count; j++) {
        const float difference = rho[1][j] - rho[0][j];
        float square = 0;
        double u = 0;
        for (int a = 0; a < d; a++) square += gradient[a][j] * gradient[a][j];
        for (int k = 0; k < rows_of(d); k++) u += lead(d, 0, 0, p, k) * value[q][k][j];
        apart += fabsf(difference);
        mass0 += rho[0][j];
        mass1 += rho[1][j];
        energy += (double)square * (rho[0][j] + rho[1][j]);
        gain += u * difference;
    }
    const double sums[TOTALS] = {apart, mass0, mass1, energy, gain, folding};
    for (int k = 0; k < TOTALS; k++) totals[k] += share * sums[k];
}

/* A block of `geonet_halfway_splines`. */
INLINE void halfway_block(const int d, const Problem *problem, const double *const *taps,
                          float *const *sums, float *weights, int32_t i, int32_t line, int32_t start,
                          int own, double *totals) {
    const Grid *grid = &problem->grid;
    const int32_t n = grid->shape[2], count = n - start < BLOCK ? n - start : BLOCK;
    double value[2][9][BLOCK], slope[2][9][BLOCK], bend[9][BLOCK], share = 1.0 / (1 << d);
    float part[4][2][BLOCK];
    for (int a = 0; a < d; a++) share *= problem->step[a];
    along(d, taps, start, count, value, slope, bend);
    for (int p = 0; p < leading_points(d); p++)
        for (int q = 0; q < 2; q++) {
            float gradient[3][BLOCK], hessian[6][BLOCK], place[3][BLOCK], cof[6][BLOCK];
            float rho[2][BLOCK], det[BLOCK], folding = 0;
            memset(cof, 0, sizeof cof);
            derivatives(d, value, slope, bend, problem->step, p, q, count, gradient, hessian);
            for (int32_t j = 0; j < count; j++) {
                float at[3];
                place_of(d, i, line, start + j, p, q, at);
                for (int a = 0; a < d; a++) place[a][j] = at[a];
            }
            for (int side = 0; side < 2; side++)
                brought(d, problem, problem->ends[side], side ? 0.5f : -0.5f, count, place, gradient,
                        hessian, rho[side], det, cof, &folding);
            for (int32_t j = 0; j < count; j++) part[p][q][j] = (float)share * (rho[1][j] - rho[0][j]);
            if (!own) continue;
            float *w = weights + (int64_t)((2 * p + q) * entries(d)) * grid->cells + start;
            int e = 0;
            for (int a = 0; a < d; a++)
                for (int b = a; b < d; b++, e++) {
                    const float scale = (float)(share / (problem->step[a] * problem->step[b]));
#pragma omp simd
                    for (int32_t j = 0; j < count; j++) w[(int64_t)e * grid->cells + j] = scale * cof[e][j];
                }
            count_up(d, p, q, count, value, gradient, rho, folding, share, totals);
        }
    spread(d, part, count, sums, start);
}

INLINE void halfway_slab(const int d, const Problem *problem, const double *padded, float *summed,
                         float *weights, int32_t from, int32_t to, double *totals) {
    const Grid *grid = &problem->grid;
    const int32_t n = grid->shape[2], axis = slab_axis(d), lines = d == 3 ? grid->shape[1] : 1;
    memset(summed + (int64_t)from * lines * (n + 2), 0,
           sizeof(float) * (size_t)((int64_t)(to - from) * lines * (n + 2)));
    for (int32_t s = from - 1; s <= to; s++) {
        if (s < 0 || s >= grid->shape[axis]) continue;
        for (int32_t line = 0; line < lines; line++) {
            const int32_t i = d == 3 ? s : 0, j = d == 3 ? line : s;
            int64_t rows[9];
            const double *taps[9];
            float *sums[9];
            tap_rows(d, grid, i, j, n + 2, rows);
            for (int k = 0; k < rows_of(d); k++) {
                taps[k] = padded + rows[k];
                sums[k] = in_slab(d, grid, rows[k] / (n + 2), from, to) ? summed + rows[k] : NULL;
            }
            const int64_t cell = ((int64_t)i * grid->shape[1] + j) * n;
            for (int32_t start = 0; start < n; start += BLOCK)
                halfway_block(d, problem, taps, sums, weights + cell, i, j, start, s >= from && s < to,
                              totals);
        }
    }
}

/* What a potential, coefficients (cells), makes of both ends at t = 1/2.

   residual: (cells), the integral of (rho1 - rho0) with every spline. weights: (2^d, entries, cells),
   A = (mu0 cof(I - D2u/2) + mu1 cof(I + D2u/2))/2 at every point, times what integrals need.
   totals: of |rho1 - rho0|, rho0, rho1, |grad u|^2 (rho0 + rho1), u (rho1 - rho0), and what folds.
   padded: room for (rows, last + 2) doubles; summed: for as many floats. */
void geonet_halfway_splines(const Problem *problem, int32_t d, int32_t threads,
                            const double *coefficients, float *residual, float *weights,
                            double *totals, double *padded, float *summed) {
    const Grid *grid = &problem->grid;
    const int32_t n = grid->shape[2], size = grid->shape[slab_axis(d)];
    const int64_t lines = d == 3 ? grid->shape[1] : 1;
    double parts[MOST_THREADS][TOTALS] = {0};
    threads = threads > MOST_THREADS ? MOST_THREADS : threads;
    threads = threads > size ? size : threads;
    geonet_pad_double(grid, coefficients, padded);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int part = 0; part < threads; part++) {
        const int32_t from = slab_begin(size, part, threads), to = slab_begin(size, part + 1, threads);
        if (d == 1) halfway_slab(1, problem, padded, summed, weights, from, to, parts[part]);
        if (d == 2) halfway_slab(2, problem, padded, summed, weights, from, to, parts[part]);
        if (d == 3) halfway_slab(3, problem, padded, summed, weights, from, to, parts[part]);
        geonet_fold(n, from * lines, to * lines, summed, residual);
    }
    memset(totals, 0, sizeof(double) * TOTALS);
    for (int part = 0; part < threads; part++)
        for (int k = 0; k < TOTALS; k++) totals[k] += parts[part][k];
}

/* Numbers of each kind that a thread of `geonet_looks` needs room for. */
INLINE int64_t weights_of(const int d, const Grid *grid) { return ((int64_t)entries(d) << d) * grid->cells; }
INLINE int64_t padded_of(const Grid *grid) { return grid->cells / grid->shape[2] * (grid->shape[2] + 2); }

/* trace A/d, means over cells (cells) of the weights that `geonet_halfway_splines` gave. */
static void mean_weight(const int d, const Problem *problem, const float *weights, float *mean) {
    const int64_t cells = problem->grid.cells;
    double volume = 1;
    for (int a = 0; a < d; a++) volume *= problem->step[a];
    memset(mean, 0, sizeof(float) * (size_t)cells);
    for (int point = 0; point < 1 << d; point++)
        for (int a = 0; a < d; a++) {
            const float *plane = weights + (point * entries(d) + diagonal_entry(d, a)) * cells;
            const float scale = (float)(problem->step[a] * problem->step[a] / (d * volume));
#pragma omp simd
            for (int64_t i = 0; i < cells; i++) mean[i] += scale * plane[i];
        }
}

/* One pair of `geonet_looks`, by so many threads. */
static void look(const Problem *like, int32_t d, int32_t threads, int64_t k, const double *coefficients,
                 const float *source, const float *target, float *residual, float *mean,
                 double *totals, float *floats, double *doubles) {
    const int64_t cells = like->grid.cells;
    Problem problem = *like;
    problem.ends[0] = source + k * cells;
    problem.ends[1] = target + k * cells;
    geonet_halfway_splines(&problem, d, threads, coefficients + k * cells, residual + k * cells, floats,
                           totals + k * TOTALS, doubles, floats + weights_of(d, &like->grid));
    mean_weight(d, &problem, floats, mean + k * cells);
}

/* `geonet_halfway_splines` for many pairs on one grid, with mean weights instead of weights.

   coefficients, source, target, residual, mean: (pairs, cells) each; totals: (pairs, TOTALS).
   Threads share out pairs. Where these are fewer, all threads work on one pair after the other.
   floats: room for (threads or 1, weights_of + padded_of), doubles: for (threads or 1, padded_of). */
void geonet_looks(const Problem *like, int32_t d, int32_t threads, int64_t pairs,
                  const double *coefficients, const float *source, const float *target,
                  float *residual, float *mean, double *totals, float *floats, double *doubles) {
    const int64_t padded = padded_of(&like->grid), own = weights_of(d, &like->grid) + padded;
    if (threads == 1 || pairs < threads) {
        for (int64_t k = 0; k < pairs; k++)
            look(like, d, threads, k, coefficients, source, target, residual, mean, totals, floats, doubles);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int part = 0; part < threads; part++)
        for (int64_t k = pairs * part / threads; k < pairs * (part + 1) / threads; k++)
            look(like, d, 1, k, coefficients, source, target, residual, mean, totals,
                 floats + part * own, doubles + part * padded);
}

/* ---- frames */

/* The cells that [centre - width/2, centre + width/2] meets, moved inside [0, n]: the first one. */
INLINE int32_t interval(float centre, float width, int32_t n, float *low, float *high) {
    const float most = (float)n - width;
    float from = centre - 0.5f * width;
    from = from < most ? from : most;
    from = from > 0 ? from : 0;
    *low = from;
    *high = from + width < (float)n ? from + width : (float)n;
    const int32_t first = (int32_t)from;
    return first < n - 1 ? first : n - 1;
}

/* What `put` does in 2D where the box is no wider than a cell, as most are: it meets at most four. */
INLINE void put_small(const Grid *grid, const float *centre, const float *width, float mass,
                      float *frame) {
    int32_t at[2];
    float beyond[2];
    for (int a = 0; a < 2; a++) {
        const int32_t n = grid->shape[1 + a];
        const float w = width[a] > NARROWEST ? width[a] : NARROWEST;
        float low, high;
        at[a] = interval(centre[a], w, n, &low, &high);
        beyond[a] = (high - (float)(at[a] + 1)) / (high - low);
        beyond[a] = beyond[a] > 0 ? beyond[a] : 0;
    }
    const int32_t stride = grid->shape[2], right = at[1] < stride - 1;
    float *row = frame + (int64_t)at[0] * stride + at[1];
    const float lower = mass * beyond[0], upper = mass - lower;
    row[0] += upper * (1 - beyond[1]);
    row[right] += upper * beyond[1];
    row += at[0] < grid->shape[1] - 1 ? stride : 0;
    row[0] += lower * (1 - beyond[1]);
    row[right] += lower * beyond[1];
}

/* Share out a mass evenly over a box among the cells of a frame. */
INLINE void put(const int d, const Grid *grid, const float *centre, const float *width, float mass,
                float *frame) {
    if (d == 2 && width[0] <= 1 && width[1] <= 1) {
        put_small(grid, centre, width, mass, frame);
        return;
    }
    int32_t first[3] = {0, 0, 0};
    float low[3] = {0, 0, 0}, high[3] = {1, 1, 1};
    for (int a = 0; a < d; a++) {
        const int32_t n = grid->shape[3 - d + a];
        float w = width[a] > NARROWEST ? width[a] : NARROWEST;
        w = w < (float)n ? w : (float)n;
        first[3 - d + a] = interval(centre[a], w, n, &low[3 - d + a], &high[3 - d + a]);
    }
    mass /= (high[0] - low[0]) * (high[1] - low[1]) * (high[2] - low[2]);
    for (int32_t i = first[0]; i < grid->shape[0] && (float)i < high[0]; i++) {
        const float a = fminf(high[0], (float)(i + 1)) - fmaxf(low[0], (float)i);
        for (int32_t j = first[1]; j < grid->shape[1] && (float)j < high[1]; j++) {
            const float b = mass * a * (fminf(high[1], (float)(j + 1)) - fmaxf(low[1], (float)j));
            float *row = frame + ((int64_t)i * grid->shape[1] + j) * grid->shape[2];
            for (int32_t k = first[2]; k < grid->shape[2] && (float)k < high[2]; k++)
                row[k] += b * (fminf(high[2], (float)(k + 1)) - fmaxf(low[2], (float)k));
        }
    }
}

/* What an end brings is off by an error in D2u over the determinant: so it counts with its square. */
INLINE float trust(float det) { return det > 0 ? det * det : 0; }

/* A block of half-cells, carried to every frame. */
INLINE void carry_block(const int d, const Problem *problem, const double *const *taps, int32_t i,
                        int32_t line, int32_t start, const float *times, int32_t moments,
                        const Grid *to, const float *scale, float *frames) {
    const Grid *grid = &problem->grid;
    const int32_t n = grid->shape[2], count = n - start < BLOCK ? n - start : BLOCK;
    double value[2][9][BLOCK], slope[2][9][BLOCK], bend[9][BLOCK];
    along(d, taps, start, count, value, slope, bend);
    for (int p = 0; p < leading_points(d); p++)
        for (int q = 0; q < 2; q++) {
            float gradient[3][BLOCK], hessian[6][BLOCK], place[3][BLOCK], cof[6][BLOCK];
            float rho[2][BLOCK], det[2][BLOCK], folding = 0;
            memset(cof, 0, sizeof cof);
            derivatives(d, value, slope, bend, problem->step, p, q, count, gradient, hessian);
            for (int32_t j = 0; j < count; j++) {
                float at[3];
                place_of(d, i, line, start + j, p, q, at);
                for (int a = 0; a < d; a++) place[a][j] = at[a];
            }
            for (int side = 0; side < 2; side++)
                brought(d, problem, problem->ends[side], side ? 0.5f : -0.5f, count, place, gradient,
                        hessian, rho[side], det[side], cof, &folding);
            for (int32_t j = 0; j < count; j++) {
                const float first = trust(det[0][j]), second = trust(det[1][j]);
                if (!(rho[0][j] > 0) && !(rho[1][j] > 0)) continue;
                for (int32_t m = 0; m < moments; m++) {
                    const float t = times[m], s = t - 0.5f;
                    const float w0 = (1 - t) * first, w1 = t * second;
                    const float mass = (w0 * rho[0][j] + w1 * rho[1][j]) / (w0 + w1);
                    if (!(mass > 0)) continue;
                    float centre[3], width[3];
                    for (int a = 0; a < d; a++) {
                        const float moved = s * gradient[a][j] / (float)problem->step[a];
                        centre[a] = (place[a][j] + moved) * scale[a];
                        width[a] = (0.5f + 0.5f * s * hessian[diagonal_entry(d, a)][j]) * scale[a];
                    }
                    put(d, to, centre, width, mass, frames + m * to->cells);
                }
            }
        }
}

INLINE void carry_slab(const int d, const Problem *problem, const double *padded, int32_t from,
                       int32_t until, const float *times, int32_t moments, const Grid *to,
                       const float *scale, float *frames) {
    const Grid *grid = &problem->grid;
    const int32_t n = grid->shape[2], lines = d == 3 ? grid->shape[1] : 1;
    for (int32_t s = from; s < until; s++)
        for (int32_t line = 0; line < lines; line++) {
            const int32_t i = d == 3 ? s : 0, j = d == 3 ? line : s;
            int64_t rows[9];
            const double *taps[9];
            tap_rows(d, grid, i, j, n + 2, rows);
            for (int k = 0; k < rows_of(d); k++) taps[k] = padded + rows[k];
            for (int32_t start = 0; start < n; start += BLOCK)
                carry_block(d, problem, taps, i, j, start, times, moments, to, scale, frames);
        }
}

/* Densities at times (moments) on the cells of another grid on the same box, up to a factor.

   frames: (threads, moments, cells of `to`), zero at first; their sum is the answer.
   scale: cells of `to` for one of the potential's, along each axis. padded: as above. */
void geonet_carry(const Problem *problem, int32_t d, int32_t threads, const double *coefficients,
                  const float *times, int32_t moments, const Grid *to, const float *scale,
                  float *frames, double *padded) {
    const int32_t size = problem->grid.shape[slab_axis(d)];
    geonet_pad_double(&problem->grid, coefficients, padded);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int part = 0; part < threads; part++) {
        const int32_t from = slab_begin(size, part, threads), until = slab_begin(size, part + 1, threads);
        float *own = frames + (int64_t)part * moments * to->cells;
        if (d == 1) carry_slab(1, problem, padded, from, until, times, moments, to, scale, own);
        if (d == 2) carry_slab(2, problem, padded, from, until, times, moments, to, scale, own);
        if (d == 3) carry_slab(3, problem, padded, from, until, times, moments, to, scale, own);
    }
}

const int32_t geonet_halfway_made_for[] = {VERSION, BLOCK, sizeof(Grid), sizeof(Problem)};
