/* The linear system of a Newton step, K x = b, by conjugate gradients with multigrid.

   (K x)_i is the sum over points of grad B_i . A grad x, with a positive definite matrix A at
   every point. K is never assembled. Coarser levels have twice the spacing and means of A; the
   smoother is Chebyshev-Jacobi. system.py has the same in torch. */

#include "quadratic.h"

#define EIGENVALUE_MARGIN 1.15 /* the power method estimates eigenvalues from below */
#define SMOOTHING_STEPS 2 /* before and after a coarser level */
#define SMALLEST_DAMPED \
    0.25 /* smallest eigenvalue that smoothing damps, as a share of the largest */
#define CELLS_PER_THREAD 8192 /* work that makes up for waking one more thread */

/* One level of the hierarchy. */
typedef struct {
    Grid grid;
    float *weights; /* A at the points, times the quadrature weight: (2^d, entries, cells) */
    float *inverse_diagonal; /* 1 / diagonal of K, (cells) */
    float *padded, *summed; /* (rows, last + 2) */
    float *x, *b, *r, *work; /* (cells) each */
    float *mode; /* eigenvector of the largest eigenvalue, (cells) */
    double largest_eigenvalue; /* of D^-1 K, D the diagonal of K */
    /* prolongation from the next coarser level along each axis: first tap and weights */
    int32_t *prolong_first[3];
    float *prolong_taps[3];
    int32_t prolong_width[3];
    /* means over half-cells of the coarser level along each axis */
    int32_t *average_first[3];
    float *average_taps[3];
    int32_t average_width[3];
    float ratio[3]; /* spacing of the coarser level over the spacing of this one */
    float *scratch; /* (4 * cells) */
} Level;

typedef struct {
    int32_t d, levels, threads;
    int32_t fresh; /* whether `mode` has no estimate yet */
    Level level[MAX_LEVELS];
    double *factor; /* Cholesky factor of the matrix of the coarsest level */
    float *coarsening[2]; /* weights after one and after two axes are coarsened */
} Hierarchy;

/* ---- rows */

/* Copy (rows, n) to (rows, n + 2), repeating the first and the last column. */
static void pad_rows(const Grid *grid, const float *x, float *padded) {
    const int32_t n = grid->shape[2];
    for (int64_t i = 0; i < grid->cells / n; i++) {
        float *row = padded + i * (n + 2);
        memcpy(row + 1, x + i * n, sizeof(float) * (size_t)n);
        row[0] = row[1];
        row[n + 1] = row[n];
    }
}

void geonet_pad_rows(const Grid *grid, const double *x, double *padded) {
    const int32_t n = grid->shape[2];
    for (int64_t i = 0; i < grid->cells / n; i++) {
        double *row = padded + i * (n + 2);
        memcpy(row + 1, x + i * n, sizeof(double) * (size_t)n);
        row[0] = row[1];
        row[n + 1] = row[n];
    }
}

/* Transpose of `pad_rows`, for some rows. */
void geonet_fold_rows(int32_t n, int64_t from, int64_t to, float *summed, float *y) {
    for (int64_t i = from; i < to; i++) {
        float *row = summed + i * (n + 2);
        row[1] += row[0];
        row[n] += row[n + 1];
        memcpy(y + i * n, row + 1, sizeof(float) * (size_t)n);
    }
}

/* Values and slopes along a block of a row, for every leading row of taps at both points. */
INLINE void evaluate_row(const int d, const float *const *taps, int32_t start, int32_t count,
                         float value[2][9][BLOCK], float slope[2][9][BLOCK]) {
    for (int k = 0; k < tap_row_count(d); k++)
        for (int q = 0; q < 2; q++) {
            const float *c = taps[k] + start;
            const float v0 = (float)W[0][q][0], v1 = (float)W[0][q][1], v2 = (float)W[0][q][2];
            const float s0 = (float)W[1][q][0], s1 = (float)W[1][q][1], s2 = (float)W[1][q][2];
#pragma omp simd
            for (int32_t j = 0; j < count; j++) {
                value[q][k][j] = v0 * c[j] + v1 * c[j + 1] + v2 * c[j + 2];
                slope[q][k][j] = s0 * c[j] + s1 * c[j + 1] + s2 * c[j + 2];
            }
        }
}

/* Transpose of `evaluate_row`: from both points to the rows of taps. */
INLINE void evaluate_row_transpose(const int d, float value[2][9][BLOCK], float slope[2][9][BLOCK],
                                   int32_t count, float *const *sums, int32_t start) {
    for (int k = 0; k < tap_row_count(d); k++) {
        if (!sums[k]) continue;
        float *to = sums[k] + start;
        for (int l = 0; l < 3; l++) {
            const float v0 = (float)W[0][0][l], v1 = (float)W[0][1][l];
            const float s0 = (float)W[1][0][l], s1 = (float)W[1][1][l];
#pragma omp simd
            for (int32_t j = 0; j < count; j++)
                to[j + l] += v0 * value[0][k][j] + v1 * value[1][k][j] + s0 * slope[0][k][j] +
                             s1 * slope[1][k][j];
        }
    }
}

/* ---- the stiffness: y = K x, (K x)_i = sum over points of grad B_i . A grad x */

INLINE void stiffness_block(const int d, const float *weights, int64_t cells, int32_t count,
                            float value[2][9][BLOCK], float slope[2][9][BLOCK],
                            float back[2][9][BLOCK], float back_slope[2][9][BLOCK]) {
    for (int q = 0; q < 2; q++) {
        for (int k = 0; k < tap_row_count(d); k++)
            for (int32_t j = 0; j < count; j++) back[q][k][j] = back_slope[q][k][j] = 0.0f;
        for (int p = 0; p < leading_points(d); p++) {
            const float *a = weights + (int64_t)((2 * p + q) * entries(d)) * cells;
#pragma omp simd
            for (int32_t j = 0; j < count; j++) {
                float g[3] = {0, 0, 0}, f[3];
                for (int k = 0; k < tap_row_count(d); k++) {
                    if (d == 3) {
                        g[0] += (float)leading_weight(d, 1, 0, p, k) * value[q][k][j];
                        g[1] += (float)leading_weight(d, 0, 1, p, k) * value[q][k][j];
                    }
                    if (d == 2) g[0] += (float)leading_weight(d, 1, 0, p, k) * value[q][k][j];
                    g[d - 1] += (float)leading_weight(d, 0, 0, p, k) * slope[q][k][j];
                }
                if (d == 1) f[0] = a[j] * g[0];
                if (d == 2) {
                    f[0] = a[j] * g[0] + a[cells + j] * g[1];
                    f[1] = a[cells + j] * g[0] + a[2 * cells + j] * g[1];
                }
                if (d == 3) {
                    f[0] = a[j] * g[0] + a[cells + j] * g[1] + a[2 * cells + j] * g[2];
                    f[1] = a[cells + j] * g[0] + a[3 * cells + j] * g[1] + a[4 * cells + j] * g[2];
                    f[2] =
                        a[2 * cells + j] * g[0] + a[4 * cells + j] * g[1] + a[5 * cells + j] * g[2];
                }
                for (int k = 0; k < tap_row_count(d); k++) {
                    if (d == 3)
                        back[q][k][j] += (float)leading_weight(d, 1, 0, p, k) * f[0] +
                                         (float)leading_weight(d, 0, 1, p, k) * f[1];
                    if (d == 2) back[q][k][j] += (float)leading_weight(d, 1, 0, p, k) * f[0];
                    back_slope[q][k][j] += (float)leading_weight(d, 0, 0, p, k) * f[d - 1];
                }
            }
        }
    }
}

INLINE void stiffness_slab(const int d, Level *level, int32_t from, int32_t to) {
    const Grid *grid = &level->grid;
    const int32_t n = grid->shape[2], axis = slab_axis(d);
    const int32_t lines = d == 3 ? grid->shape[1] : 1;
    float value[2][9][BLOCK], slope[2][9][BLOCK], back[2][9][BLOCK], back_slope[2][9][BLOCK];
    memset(level->summed + (int64_t)from * lines * (n + 2), 0,
           sizeof(float) * (size_t)((int64_t)(to - from) * lines * (n + 2)));
    for (int32_t s = from - 1; s <= to; s++) {
        if (s < 0 || s >= grid->shape[axis]) continue;
        for (int32_t line = 0; line < lines; line++) {
            const int32_t i = d == 3 ? s : 0, j = d == 3 ? line : s;
            int64_t rows[9];
            const float *taps[9];
            float *sums[9];
            tap_rows(d, grid, i, j, n + 2, rows);
            for (int k = 0; k < tap_row_count(d); k++) {
                taps[k] = level->padded + rows[k];
                sums[k] =
                    in_slab(d, grid, rows[k] / (n + 2), from, to) ? level->summed + rows[k] : NULL;
            }
            const int64_t cell = ((int64_t)i * grid->shape[1] + j) * n;
            for (int32_t start = 0; start < n; start += BLOCK) {
                const int32_t count = n - start < BLOCK ? n - start : BLOCK;
                evaluate_row(d, taps, start, count, value, slope);
                stiffness_block(d, level->weights + cell + start, grid->cells, count, value, slope,
                                back, back_slope);
                evaluate_row_transpose(d, back, back_slope, count, sums, start);
            }
        }
    }
}

static void stiffness_any(int d, Level *level, int32_t from, int32_t to) {
    if (d == 1) stiffness_slab(1, level, from, to);
    if (d == 2) stiffness_slab(2, level, from, to);
    if (d == 3) stiffness_slab(3, level, from, to);
}

/* Number of threads for a level. */
static int threads_for(const Hierarchy *h, const Level *level) {
    const int64_t worth = level->grid.cells / CELLS_PER_THREAD;
    const int32_t most = level->grid.shape[slab_axis(h->d)];
    int threads = worth < h->threads ? (int)worth : h->threads;
    threads = threads < most ? threads : most;
    return threads < 1 ? 1 : threads;
}

/* y = K x on a level. */
static void stiffness(const Hierarchy *h, Level *level, const float *x, float *y) {
    const int d = h->d, threads = threads_for(h, level);
    const int32_t size = level->grid.shape[slab_axis(d)], n = level->grid.shape[2];
    const int64_t lines = d == 3 ? level->grid.shape[1] : 1;
    pad_rows(&level->grid, x, level->padded);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int part = 0; part < threads; part++) {
        const int32_t from = slab_begin(size, part, threads),
                      to = slab_begin(size, part + 1, threads);
        stiffness_any(d, level, from, to);
        geonet_fold_rows(n, from * lines, to * lines, level->summed, y);
    }
}

/* ---- the diagonal of the stiffness */

INLINE void diagonal_any(const int d, Level *level) {
    const Grid *grid = &level->grid;
    const int32_t n = grid->shape[2];
    memset(level->summed, 0, sizeof(float) * (size_t)(grid->cells / n * (n + 2)));
    for (int32_t i = 0; i < (d == 3 ? grid->shape[0] : 1); i++)
        for (int32_t line = 0; line < (d == 1 ? 1 : grid->shape[1]); line++) {
            int64_t rows[9];
            tap_rows(d, grid, i, line, n + 2, rows);
            const int64_t cell = ((int64_t)i * grid->shape[1] + line) * n;
            for (int k = 0; k < tap_row_count(d); k++)
                for (int l = 0; l < 3; l++) {
                    float *to = level->summed + rows[k] + l;
                    for (int q = 0; q < 2; q++)
                        for (int p = 0; p < leading_points(d); p++) {
                            const float *a = level->weights +
                                             (int64_t)((2 * p + q) * entries(d)) * grid->cells +
                                             cell;
                            const float last = (float)(leading_weight(d, 0, 0, p, k) * W[1][q][l]);
                            const float first = (float)(leading_weight(d, 1, 0, p, k) * W[0][q][l]);
                            const float second =
                                (float)(leading_weight(d, 0, 1, p, k) * W[0][q][l]);
                            const int64_t N = grid->cells;
#pragma omp simd
                            for (int32_t j = 0; j < n; j++) {
                                if (d == 1) to[j] += a[j] * last * last;
                                if (d == 2)
                                    to[j] += a[j] * first * first + 2 * a[N + j] * first * last +
                                             a[2 * N + j] * last * last;
                                if (d == 3)
                                    to[j] += a[j] * first * first + a[3 * N + j] * second * second +
                                             a[5 * N + j] * last * last +
                                             2 * (a[N + j] * first * second +
                                                  a[2 * N + j] * first * last +
                                                  a[4 * N + j] * second * last);
                            }
                        }
                }
        }
    geonet_fold_rows(n, 0, grid->cells / n, level->summed, level->inverse_diagonal);
    for (int64_t i = 0; i < grid->cells; i++)
        level->inverse_diagonal[i] = 1.0f / level->inverse_diagonal[i];
}

static void diagonal(int d, Level *level) {
    if (d == 1) diagonal_any(1, level);
    if (d == 2) diagonal_any(2, level);
    if (d == 3) diagonal_any(3, level);
}

/* ---- transfers between levels, axis by axis */

/* out = T in along an axis: T takes n_in to n_out numbers, `width` taps from first[i]. */
static void apply(const float *in, float *out, int64_t outer, int32_t n_in, int32_t n_out,
                  int64_t inner, const int32_t *first, const float *taps, int32_t width) {
    for (int64_t o = 0; o < outer; o++)
        for (int32_t i = 0; i < n_out; i++) {
            const float *from = in + (o * n_in + first[i]) * inner;
            float *to = out + (o * n_out + i) * inner;
            const float *w = taps + (int64_t)i * width;
            if (inner == 1) {
                float sum = 0;
                for (int32_t k = 0; k < width; k++) sum += w[k] * from[k];
                *to = sum;
            } else {
                for (int64_t j = 0; j < inner; j++) to[j] = w[0] * from[j];
                for (int32_t k = 1; k < width; k++)
                    if (w[k] != 0.0f)
                        for (int64_t j = 0; j < inner; j++) to[j] += w[k] * from[k * inner + j];
            }
        }
}

/* out = T^t in along an axis. */
static void apply_transpose(const float *in, float *out, int64_t outer, int32_t n_in, int32_t n_out,
                            int64_t inner, const int32_t *first, const float *taps, int32_t width) {
    memset(out, 0, sizeof(float) * (size_t)(outer * n_out * inner));
    for (int64_t o = 0; o < outer; o++)
        for (int32_t i = 0; i < n_in; i++) {
            const float *from = in + (o * n_in + i) * inner;
            float *to = out + (o * n_out + first[i]) * inner;
            const float *w = taps + (int64_t)i * width;
            for (int32_t k = 0; k < width; k++)
                if (w[k] != 0.0f)
                    for (int64_t j = 0; j < inner; j++) to[k * inner + j] += w[k] * from[j];
        }
}

/* Coefficients of the next coarser level to this one: the same spline if cells are halved. */
static void prolong(int d, const Level *fine, const Level *coarse, const float *x, float *y) {
    const float *from = x;
    float *buffers[2] = {fine->scratch, fine->scratch + fine->grid.cells * 2};
    int32_t shape[3];
    memcpy(shape, coarse->grid.shape, sizeof shape);
    for (int axis = 3 - d; axis < 3; axis++) {
        float *to = axis == 2 ? y : buffers[axis % 2];
        int64_t outer = 1, inner = 1;
        for (int a = 0; a < axis; a++) outer *= shape[a];
        for (int a = axis + 1; a < 3; a++) inner *= shape[a];
        apply(from, to, outer, shape[axis], fine->grid.shape[axis], inner,
              fine->prolong_first[axis], fine->prolong_taps[axis], fine->prolong_width[axis]);
        shape[axis] = fine->grid.shape[axis];
        from = to;
    }
}

/* Transpose of `prolong`. */
static void restrict_to(int d, const Level *fine, const Level *coarse, const float *x, float *y) {
    const float *from = x;
    float *buffers[2] = {fine->scratch, fine->scratch + fine->grid.cells * 2};
    int32_t shape[3];
    memcpy(shape, fine->grid.shape, sizeof shape);
    for (int axis = 2; axis >= 3 - d; axis--) {
        float *to = axis == 3 - d ? y : buffers[axis % 2];
        int64_t outer = 1, inner = 1;
        for (int a = 0; a < axis; a++) outer *= shape[a];
        for (int a = axis + 1; a < 3; a++) inner *= shape[a];
        apply_transpose(from, to, outer, shape[axis], coarse->grid.shape[axis], inner,
                        fine->prolong_first[axis], fine->prolong_taps[axis],
                        fine->prolong_width[axis]);
        shape[axis] = coarse->grid.shape[axis];
        from = to;
    }
}

/* Average planes (2^d, entries, cells) of the weights over coarser half-cells along one axis.

   A cell has two half-cells along an axis, one around each point. */
static void coarsen_axis(int d, const float *in, const int32_t *shape_in, float *out,
                         const int32_t *shape_out, int axis, const Level *fine) {
    const int bit = d == 3 ? (axis == 0 ? 4 : axis == 1 ? 2 : 1) : d == 2 ? (axis == 1 ? 2 : 1) : 1;
    const int64_t cells_in = (int64_t)shape_in[0] * shape_in[1] * shape_in[2];
    const int64_t cells_out = (int64_t)shape_out[0] * shape_out[1] * shape_out[2];
    int64_t outer = 1, inner = 1;
    for (int a = 0; a < axis; a++) outer *= shape_in[a];
    for (int a = axis + 1; a < 3; a++) inner *= shape_in[a];
    const int32_t n_in = shape_in[axis], n_out = shape_out[axis], width = fine->average_width[axis];
    const int points = 1 << d, m = entries(d);
    for (int point = 0; point < points; point++)
        for (int e = 0; e < m; e++) {
            float *to = out + (int64_t)(point * m + e) * cells_out;
            const float *from[2] = {in + (int64_t)((point & ~bit) * m + e) * cells_in,
                                    in + (int64_t)((point | bit) * m + e) * cells_in};
            if (inner == 1 && n_in == 2 * n_out) { /* the loop below, vectorised */
                const int odd = (point & bit) != 0;
#pragma omp simd
                for (int64_t i = 0; i < outer * n_out; i++)
                    to[i] = 0.5f * (from[0][2 * i + odd] + from[1][2 * i + odd]);
                continue;
            }
            for (int64_t o = 0; o < outer; o++)
                for (int32_t i = 0; i < n_out; i++) {
                    const int32_t half = 2 * i + ((point & bit) != 0);
                    const int32_t first = fine->average_first[axis][half];
                    const float *w = fine->average_taps[axis] + (int64_t)half * width;
                    float *row = to + (o * n_out + i) * inner;
                    for (int64_t j = 0; j < inner; j++) row[j] = 0;
                    for (int32_t k = 0; k < width; k++) {
                        if (w[k] == 0.0f) continue;
                        const int32_t s = first + k;
                        const float *part = from[s % 2] + (o * n_in + s / 2) * inner;
                        for (int64_t j = 0; j < inner; j++) row[j] += w[k] * part[j];
                    }
                }
        }
}

/* Weights of the next coarser level: means, in the units of the coarser level. */
static void coarsen(int d, const Level *fine, Level *coarse, float *buffers[2]) {
    const float *from = fine->weights;
    int32_t shape[3], next[3], axes[3], count = 0;
    memcpy(shape, fine->grid.shape, sizeof shape);
    for (int axis = 3 - d; axis < 3; axis++)
        if (coarse->grid.shape[axis] != shape[axis]) axes[count++] = axis;
    for (int k = 0; k < count; k++) {
        float *to = k == count - 1 ? coarse->weights : buffers[k];
        memcpy(next, shape, sizeof shape);
        next[axes[k]] = coarse->grid.shape[axes[k]];
        coarsen_axis(d, from, shape, to, next, axes[k], fine);
        memcpy(shape, next, sizeof shape);
        from = to;
    }
    float volume = 1;
    for (int axis = 3 - d; axis < 3; axis++) volume *= fine->ratio[axis];
    const int m = entries(d);
    for (int point = 0; point < 1 << d; point++)
        for (int e = 0; e < m; e++) {
            int i = 0, rest = e; /* entry e is (i, j) of the upper triangle */
            while (rest >= d - i) rest -= d - i++;
            const int j = i + rest;
            const float scale = volume / (fine->ratio[3 - d + i] * fine->ratio[3 - d + j]);
            float *plane = coarse->weights + (int64_t)(point * m + e) * coarse->grid.cells;
            for (int64_t c = 0; c < coarse->grid.cells; c++) plane[c] *= scale;
        }
}

/* ---- multigrid */

static double dot(const float *a, const float *b, int64_t n) {
    double total = 0;
    for (int64_t start = 0; start < n; start += 1024) {
        const int64_t end = start + 1024 < n ? start + 1024 : n;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = start; i < end; i++) sum += a[i] * b[i];
        total += sum;
    }
    return total;
}

/* Largest eigenvalue of D^-1 K by the power method, starting from the eigenvector of the last
   problem. */
static double largest_eigenvalue(const Hierarchy *h, Level *level) {
    const int64_t n = level->grid.cells;
    const int steps = h->fresh ? 6 : 2;
    uint32_t state = 12345u;
    for (int64_t i = 0; h->fresh && i < n; i++) {
        state = state * 1664525u + 1013904223u;
        level->mode[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
    double value = 1;
    for (int s = 0; s < steps; s++) {
        stiffness(h, level, level->mode, level->work);
        double norm = 0, size = 0; /* in the norm of D, in which D^-1 K is symmetric */
        for (int64_t i = 0; i < n; i++) {
            const float next = level->inverse_diagonal[i] * level->work[i];
            norm += (double)next * level->work[i];
            size += (double)level->mode[i] * level->mode[i] / level->inverse_diagonal[i];
            level->work[i] = next;
        }
        value = sqrt(norm / size);
        const float scale = (float)(1 / sqrt(norm));
        for (int64_t i = 0; i < n; i++) level->mode[i] = level->work[i] * scale;
    }
    return EIGENVALUE_MARGIN * value;
}

/* Chebyshev-Jacobi steps for K x = b on the upper part of the spectrum.

   From x = 0 if `fresh`. Overwrites work and r. */
static void smooth(const Hierarchy *h, Level *level, const float *b, float *x, int fresh) {
    const int64_t n = level->grid.cells;
    const double top = level->largest_eigenvalue, bottom = top * SMALLEST_DAMPED;
    const double theta = (top + bottom) / 2, delta = (top - bottom) / 2, sigma = theta / delta;
    double rho = 1 / sigma;
    float *r = level->r, *step = level->work;
    for (int s = 0; s < SMOOTHING_STEPS; s++) {
        if (s == 0 && fresh)
            memcpy(r, b, sizeof(float) * (size_t)n);
        else {
            stiffness(h, level, x, r);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) r[i] = b[i] - r[i];
        }
        if (s == 0) {
            const float scale = (float)(1 / theta);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) step[i] = scale * level->inverse_diagonal[i] * r[i];
        } else {
            const double next = 1 / (2 * sigma - rho);
            const float keep = (float)(next * rho), scale = (float)(2 * next / delta);
            rho = next;
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                step[i] = keep * step[i] + scale * level->inverse_diagonal[i] * r[i];
        }
        if (s == 0 && fresh)
            memcpy(x, step, sizeof(float) * (size_t)n);
        else
#pragma omp simd
            for (int64_t i = 0; i < n; i++) x[i] += step[i];
    }
}

/* Factor the matrix of the coarsest level, plus a constant matrix that removes its null
   space. */
static void factor(Hierarchy *h) {
    Level *level = &h->level[h->levels - 1];
    const int64_t n = level->grid.cells;
    double *a = h->factor, mean = 0;
    for (int64_t i = 0; i < n; i++) {
        memset(level->x, 0, sizeof(float) * (size_t)n);
        level->x[i] = 1;
        stiffness(h, level, level->x, level->work);
        for (int64_t j = 0; j < n; j++) a[i * n + j] = level->work[j];
        mean += a[i * n + i] / (double)n;
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            a[i * n + j] += mean / (double)n; /* shifts the eigenvalue of the constant */
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = a[i * n + j];
            for (int64_t k = 0; k < j; k++) sum -= a[i * n + k] * a[j * n + k];
            a[i * n + j] =
                i == j ? sqrt(sum > 1e-12 * mean ? sum : 1e-12 * mean) : sum / a[j * n + j];
        }
}

static void solve_coarsest(const Hierarchy *h, const float *b, float *x) {
    const int64_t n = h->level[h->levels - 1].grid.cells;
    const double *a = h->factor;
    double y[4096];
    for (int64_t i = 0; i < n; i++) {
        double sum = b[i];
        for (int64_t k = 0; k < i; k++) sum -= a[i * n + k] * y[k];
        y[i] = sum / a[i * n + i];
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        double sum = y[i];
        for (int64_t k = i + 1; k < n; k++) sum -= a[k * n + i] * y[k];
        y[i] = sum / a[i * n + i];
    }
    for (int64_t i = 0; i < n; i++) x[i] = (float)y[i];
}

/* One V-cycle from zero for K x = b on level l. */
static void cycle(Hierarchy *h, int l, const float *b, float *x) {
    Level *level = &h->level[l];
    const int64_t n = level->grid.cells;
    if (l == h->levels - 1) {
        solve_coarsest(h, b, x);
        return;
    }
    Level *coarse = level + 1;
    smooth(h, level, b, x, 1);
    stiffness(h, level, x, level->r);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) level->r[i] = b[i] - level->r[i];
    restrict_to(h->d, level, coarse, level->r, coarse->b);
    cycle(h, l + 1, coarse->b, coarse->x);
    prolong(h->d, level, coarse, coarse->x, level->work);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) x[i] += level->work[i];
    smooth(h, level, b, x, 0);
}

/* out = maximum of a field over each cell and its neighbours along one axis. */
static void neighbour_maximum(const Grid *grid, int axis, const float *in, float *out) {
    int64_t inner = 1;
    const int32_t n = grid->shape[axis];
    for (int a = axis + 1; a < 3; a++) inner *= grid->shape[a];
    for (int64_t row = 0; row < grid->cells / inner; row++) {
        const int64_t before = row % n > 0 ? inner : 0, after = row % n < n - 1 ? inner : 0;
        const float *from = in + row * inner;
        float *to = out + row * inner;
#pragma omp simd
        for (int64_t j = 0; j < inner; j++) {
            const float side = from[j - before] > from[j + after] ? from[j - before] : from[j + after];
            to[j] = from[j] > side ? from[j] : side;
        }
    }
}

/* Add to A on the finest level: damping + local_damping times the largest |residual| per volume of
   a cell and its neighbours. */
static void add_damping(Hierarchy *h, const double *step, double damping, double local_damping,
                        const float *residual) {
    Level *finest = &h->level[0];
    const int64_t cells = finest->grid.cells;
    const int d = h->d, m = entries(d);
    double volume = 1;
    for (int a = 0; a < d; a++) volume *= step[a];
    float *field = finest->scratch, *spare = field + cells;
    for (int64_t i = 0; i < cells; i++)
        field[i] = (float)(damping + local_damping / volume * fabsf(residual[i]));
    for (int axis = 3 - d; axis < 3; axis++) {
        neighbour_maximum(&finest->grid, axis, field, spare);
        float *swap = field;
        field = spare;
        spare = swap;
    }
    for (int point = 0; point < 1 << d; point++)
        for (int a = 0; a < d; a++) {
            const float share = (float)(volume / (1 << d) / (step[a] * step[a]));
            float *plane = finest->weights + (int64_t)(point * m + diagonal_entry(d, a)) * cells;
#pragma omp simd
            for (int64_t i = 0; i < cells; i++) plane[i] += share * field[i];
        }
}

/* Prepare all levels, after adding the damping to A on the finest one. */
void geonet_multigrid_prepare(Hierarchy *h, const double *step, double damping,
                              double local_damping, const float *residual) {
    const int d = h->d;
    add_damping(h, step, damping, local_damping, residual);
    for (int l = 0; l < h->levels; l++) {
        Level *level = &h->level[l];
        if (l > 0) coarsen(d, level - 1, level, h->coarsening);
        if (l == h->levels - 1) break;
        diagonal(d, level);
        level->largest_eigenvalue = largest_eigenvalue(h, level);
    }
    h->fresh = 0;
    factor(h);
}

/* Solve K x = b up to `tolerance` of |b| by conjugate gradients with multigrid, from zero.

   Returns the number of iterations. scratch: (4, cells). */
int32_t geonet_multigrid_solve(Hierarchy *h, const float *b, float *x, float *scratch,
                               double tolerance, int32_t max_iterations) {
    Level *level = &h->level[0];
    const int64_t n = level->grid.cells;
    float *p = scratch, *q = p + n, *z = q + n, *g = z + n;
    memset(x, 0, sizeof(float) * (size_t)n);
    double mean = 0;
    for (int64_t i = 0; i < n; i++) mean += b[i];
    mean /= (double)n;
    for (int64_t i = 0; i < n; i++) g[i] = (float)(b[i] - mean);
    const double start = dot(g, g, n);
    double gz = 0, now = start;
    int32_t step = 0;
    while (step < max_iterations && now > tolerance * tolerance * start && start > 0) {
        cycle(h, 0, g, z);
        const double next = dot(g, z, n);
        const float beta = step ? (float)(next / gz) : 0.0f;
        gz = next;
        if (step)
#pragma omp simd
            for (int64_t i = 0; i < n; i++) p[i] = z[i] + beta * p[i];
        else
            memcpy(p, z, sizeof(float) * (size_t)n);
        stiffness(h, level, p, q);
        const double curvature = dot(p, q, n);
        if (!(curvature > 0) || !(gz > 0)) break;
        const float alpha = (float)(gz / curvature);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            x[i] += alpha * p[i];
            g[i] -= alpha * q[i];
        }
        now = dot(g, g, n);
        step++;
    }
    return step;
}

/* compiled.py compares these numbers with its own, so that it never calls an outdated
   library. */
const int32_t geonet_multigrid_abi[] = {MAX_LEVELS, sizeof(Level), sizeof(Hierarchy)};
