/* The linear system of a Newton step, K x = b, by conjugate gradients with multigrid.

   (K x)_i is the sum over points of grad B_i . A grad x, with a positive definite matrix A at
   every point, plus a diagonal mass m_i x_i; in 3D A is constant in a cell. K is never assembled.
   Coarser levels have twice the spacing and means of A; the smoother is Chebyshev-Jacobi.

   A barycenter has one field of unknowns for each density, and one K for each, which are coupled by
   the constraint sum_f w_f x_f = 0 at every cell. All vectors have the shape (fields, cells). Transfers
   preserve the constraint, and Jacobi steps project onto it. system.py has the same in torch. */

#include "quadratic.h"

#define EIGENVALUE_MARGIN 1.15 /* the power method estimates eigenvalues from below */
#define SMOOTHING_STEPS 2 /* before and after a coarser level */
#define SMALLEST_DAMPED \
    0.25 /* smallest eigenvalue that smoothing damps, as a share of the largest */
#define CELLS_PER_THREAD 8192 /* work that makes up for waking one more thread */
#define SUM_BLOCK 1024 /* cells that a thread sums without interruption */
#define MAX_COARSEST 4096 /* largest number of unknowns of the coarsest level */

/* Before a loop over cells, with `threads` threads. */
#define PARALLEL _Pragma("omp parallel for simd num_threads(threads) if (parallel : threads > 1)")

/* A matrix with few entries in each row, side by side; columns beyond the last one wrap. */
typedef struct {
    const int32_t *first; /* column of the first entry of each row */
    const float *taps; /* (rows, width) */
    int32_t width;
} Band;

/* One level of the hierarchy. */
typedef struct {
    Grid grid;
    float *weights; /* A times quadrature weights: (fields, weight_points, entries, cells) */
    float *mass; /* diagonal of the mass matrix, (fields, cells); NULL if there is none */
    float *inverse_diagonal; /* 1 / diagonal of K, (fields, cells) */
    float *constraint; /* 1 / sum_f w_f^2 / diagonal_f, (cells); unused for one field */
    float *padded, *summed; /* (rows, last + 2), in 1D and 2D */
    float *x, *b, *r, *work; /* (fields, cells) each */
    float *mode; /* eigenvector of the largest eigenvalue, (fields, cells) */
    double largest_eigenvalue; /* of D^-1 K, D the diagonal of K */
    /* by axis: from and to the next coarser level; means over its half-cells, in 3D its cells */
    Band prolong[3], restriction[3], average[3];
    float ratio[3]; /* spacing of the coarser level over the spacing of this one */
    float *scratch; /* (2, cells) */
} Level;

typedef struct {
    int32_t d, levels, threads;
    int32_t fresh; /* whether `mode` has no estimate yet */
    int32_t fields;
    const double *field_weights; /* w, (fields); unused for one field */
    Level level[MAX_LEVELS];
    double *factor; /* Cholesky factor of the coarsest level, and the matrices of its fields */
    float *coarsening[2]; /* weights after one and after two axes are coarsened */
    float *row_buffers; /* in 3D: (threads, ROW_BUFFERS, last + ROW_MARGIN) */
    double *block_sums; /* (2, fields cells / SUM_BLOCK + 1) */
} Hierarchy;

INLINE int64_t unknowns(const Hierarchy *h, const Level *level) {
    return h->fields * level->grid.cells;
}

/* Weights A of a field. */
INLINE float *weights_of(const Hierarchy *h, const Level *level, int f) {
    return level->weights + (int64_t)f * weight_points(h->d) * entries(h->d) * level->grid.cells;
}

/* ---- rows */

/* Copy (rows, n) to (rows, n + 2), with the columns beyond either end. */
static void pad_rows(const Grid *grid, const float *x, float *padded) {
    const int32_t n = grid->shape[2];
    const int32_t before = neighbour_index(grid, 2, -1), after = neighbour_index(grid, 2, n);
    for (int64_t i = 0; i < grid->cells / n; i++) {
        float *row = padded + i * (n + 2);
        memcpy(row + 1, x + i * n, sizeof(float) * (size_t)n);
        row[0] = row[1 + before];
        row[n + 1] = row[1 + after];
    }
}

void geonet_pad_rows(const Grid *grid, const double *x, double *padded) {
    const int32_t n = grid->shape[2];
    const int32_t before = neighbour_index(grid, 2, -1), after = neighbour_index(grid, 2, n);
    for (int64_t i = 0; i < grid->cells / n; i++) {
        double *row = padded + i * (n + 2);
        memcpy(row + 1, x + i * n, sizeof(double) * (size_t)n);
        row[0] = row[1 + before];
        row[n + 1] = row[1 + after];
    }
}

/* Transpose of `pad_rows`, for some rows. */
void geonet_fold_rows(const Grid *grid, int64_t from, int64_t to, float *summed, float *y) {
    const int32_t n = grid->shape[2];
    const int32_t before = neighbour_index(grid, 2, -1), after = neighbour_index(grid, 2, n);
    for (int64_t i = from; i < to; i++) {
        float *row = summed + i * (n + 2);
        row[1 + before] += row[0];
        row[1 + after] += row[n + 1];
        memcpy(y + i * n, row + 1, sizeof(float) * (size_t)n);
    }
}

/* Values and slopes along a block of a row, for every leading row of taps at both points. */
INLINE void evaluate_row(const int d, const float *const *taps, int32_t start, int32_t count,
                         float value[2][3][BLOCK], float slope[2][3][BLOCK]) {
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
INLINE void evaluate_row_transpose(const int d, float value[2][3][BLOCK], float slope[2][3][BLOCK],
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

/* ---- the stiffness in 1D and 2D: y = K x, (K x)_i = sum over points of grad B_i . A grad x */

INLINE void stiffness_block(const int d, const float *weights, int64_t cells, int32_t count,
                            float value[2][3][BLOCK], float slope[2][3][BLOCK],
                            float back[2][3][BLOCK], float back_slope[2][3][BLOCK]) {
    for (int q = 0; q < 2; q++) {
        for (int k = 0; k < tap_row_count(d); k++)
            for (int32_t j = 0; j < count; j++) back[q][k][j] = back_slope[q][k][j] = 0.0f;
        for (int p = 0; p < leading_points(d); p++) {
            const float *a = weights + (int64_t)((2 * p + q) * entries(d)) * cells;
#pragma omp simd
            for (int32_t j = 0; j < count; j++) {
                float g[2] = {0, 0}, f[2];
                for (int k = 0; k < tap_row_count(d); k++) {
                    if (d == 2) g[0] += (float)leading_weight(d, 1, 0, p, k) * value[q][k][j];
                    g[d - 1] += (float)leading_weight(d, 0, 0, p, k) * slope[q][k][j];
                }
                if (d == 1) f[0] = a[j] * g[0];
                if (d == 2) {
                    f[0] = a[j] * g[0] + a[cells + j] * g[1];
                    f[1] = a[cells + j] * g[0] + a[2 * cells + j] * g[1];
                }
                for (int k = 0; k < tap_row_count(d); k++) {
                    if (d == 2) back[q][k][j] += (float)leading_weight(d, 1, 0, p, k) * f[0];
                    back_slope[q][k][j] += (float)leading_weight(d, 0, 0, p, k) * f[d - 1];
                }
            }
        }
    }
}

INLINE void stiffness_slab(const int d, Level *level, const float *weights, int32_t from,
                           int32_t to) {
    const Grid *grid = &level->grid;
    const int32_t n = grid->shape[2];
    float value[2][3][BLOCK], slope[2][3][BLOCK], back[2][3][BLOCK], back_slope[2][3][BLOCK];
    memset(level->summed + (int64_t)from * (n + 2), 0,
           sizeof(float) * (size_t)((int64_t)(to - from) * (n + 2)));
    for (int32_t s = from - 1; s <= last_overlap(grid, 1, from, to); s++) {
        const int32_t line = existing_index(grid, 1, s);
        if (line < 0) continue;
        int64_t rows[3];
        const float *taps[3];
        float *sums[3];
        tap_rows(d, grid, 0, line, n + 2, rows);
        for (int k = 0; k < tap_row_count(d); k++) {
            taps[k] = level->padded + rows[k];
            sums[k] =
                in_slab(d, grid, rows[k] / (n + 2), from, to) ? level->summed + rows[k] : NULL;
        }
        const int64_t cell = (int64_t)line * n;
        for (int32_t start = 0; start < n; start += BLOCK) {
            const int32_t count = n - start < BLOCK ? n - start : BLOCK;
            evaluate_row(d, taps, start, count, value, slope);
            stiffness_block(d, weights + cell + start, grid->cells, count, value, slope, back,
                            back_slope);
            evaluate_row_transpose(d, back, back_slope, count, sums, start);
        }
    }
}

/* Not inlined, because the loops are slower within a parallel region. */
static __attribute__((noinline)) void stiffness_slab_any(int d, Level *level, const float *weights,
                                                         int32_t from, int32_t to) {
    if (d == 1) stiffness_slab(1, level, weights, from, to);
    if (d == 2) stiffness_slab(2, level, weights, from, to);
}

/* ---- the stiffness in 3D, with a matrix A that is constant in each cell

   Along one axis, the sum of f g over the two points of a cell is 2 (m m' + e e'), with the means m
   and half the differences e of f and g. For a spline with taps x0, x1 and x2 they are

       value: m = MEAN = (5 x0 + 22 x1 + 5 x2)/32        e = SLOPE/4
       slope: m = SLOPE = (x2 - x0)/2                    e = CURVATURE/4 = (x0 - 2 x1 + x2)/4

   so that products of MEAN, SLOPE and CURVATURE along the three axes determine the sum over the
   eight points. They are computed axis by axis; a slope is needed along one axis at least, and a
   curvature along one axis at most. The transpose gathers from cells: the cell beyond a face is
   the reflection of the cell at the face, and its SLOPE has the opposite sign. Along a periodic
   axis it is the first or the last cell itself. */

enum { MEAN, SLOPE, CURVATURE, NUMBERS };

/* Vectors of cells along the last axis. */
#define LANES 16
typedef float Lanes __attribute__((vector_size(4 * LANES)));
typedef float UnalignedLanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Buffers of a thread. A row has a column beyond either end, and the rest of a vector. */
typedef struct {
    float *first[3][3]; /* numbers along axis 0, for three lines in turn */
    float *second[3][3]; /* numbers along axes 0 and 1, of one line */
    float *third[3][3][3]; /* fluxes for the numbers along axes 0, 1 and 2, of one line */
    float *back[3][3][3]; /* fluxes for the numbers along axes 0 and 1, for three lines in turn */
    float *sums[3]; /* fluxes for the numbers along axis 0, of one line */
} RowBuffers;

#define ROW_BUFFERS (9 + 9 + 27 + 27 + 3)
#define ROW_MARGIN (2 + LANES)

static RowBuffers split_row_buffers(float *memory, int32_t n) {
    RowBuffers rows;
    float **all[] = {rows.first[0], rows.second[0], rows.third[0][0], rows.back[0][0], rows.sums};
    const int counts[] = {9, 9, 27, 27, 3};
    for (int group = 0; group < 5; group++)
        for (int k = 0; k < counts[group]; k++, memory += n + ROW_MARGIN) all[group][k] = memory;
    return rows;
}

INLINE Lanes load(const float *from) { return *(const UnalignedLanes *)from; }
INLINE void store(float *to, Lanes values) { *(UnalignedLanes *)to = values; }

/* The first `count` numbers, then zeros. */
INLINE Lanes load_some(const float *from, int32_t count) {
    if (count == LANES) return load(from);
    float values[LANES] = {0};
    memcpy(values, from, sizeof(float) * (size_t)count);
    return load(values);
}

/* Whether the number along the three axes matters: it has a slope or a curvature along one axis at
   least, and a curvature along one axis at most. */
INLINE int is_needed(int p, int q, int r) {
    const int curvatures = (p == CURVATURE) + (q == CURVATURE) + (r == CURVATURE);
    return p + q + r > 0 && curvatures < 2;
}

INLINE float mean_of(float before, float here, float after) {
    return 0.15625f * (before + after) + 0.6875f * here;
}
INLINE float slope_of(float before, float after) { return 0.5f * (after - before); }
INLINE float curvature_of(float before, float here, float after) {
    return before + after - 2 * here;
}

/* Numbers along axis 0 of the cells of a line in plane i, with a column beyond either end. */
static void evaluate_first_axis(const Grid *grid, const float *x, int32_t i, int32_t line,
                                float *const *numbers) {
    const int32_t n = grid->shape[2];
    const int64_t plane = (int64_t)grid->shape[1] * n;
    const float *row = x + (int64_t)line * n, *here = row + i * plane;
    const float *before = row + neighbour_index(grid, 0, i - 1) * plane;
    const float *after = row + neighbour_index(grid, 0, i + 1) * plane;
    const int32_t left = neighbour_index(grid, 2, -1), right = neighbour_index(grid, 2, n);
    float *mean = numbers[MEAN] + 1, *slope = numbers[SLOPE] + 1,
          *curvature = numbers[CURVATURE] + 1;
#pragma omp simd
    for (int32_t j = 0; j < n; j++) {
        mean[j] = mean_of(before[j], here[j], after[j]);
        slope[j] = slope_of(before[j], after[j]);
        curvature[j] = curvature_of(before[j], here[j], after[j]);
    }
    for (int a = 0; a < NUMBERS; a++) {
        numbers[a][0] = numbers[a][1 + left];
        numbers[a][n + 1] = numbers[a][1 + right];
    }
}

/* Numbers along axes 0 and 1 of a line, from the numbers along axis 0 of three lines. */
static void evaluate_second_axis(int32_t n, float *const *before, float *const *here,
                                 float *const *after, float *const numbers[3][3]) {
    for (int a = 0; a < NUMBERS; a++) {
        const float *x0 = before[a], *x1 = here[a], *x2 = after[a];
        float *mean = numbers[a][MEAN], *slope = numbers[a][SLOPE],
              *curvature = numbers[a][CURVATURE];
#pragma omp simd
        for (int32_t j = 0; j < n + 2; j++) {
            mean[j] = mean_of(x0[j], x1[j], x2[j]);
            slope[j] = slope_of(x0[j], x2[j]);
        }
        if (a == CURVATURE) continue;
#pragma omp simd
        for (int32_t j = 0; j < n + 2; j++) curvature[j] = curvature_of(x0[j], x1[j], x2[j]);
    }
}

/* Fluxes of the cells of a line, from the numbers along axes 0 and 1. */
static void evaluate_fluxes(int32_t n, const float *weights, int64_t cells,
                            float *const numbers[3][3], float *const fluxes[3][3][3]) {
    for (int32_t start = 0; start < n; start += LANES) {
        const int32_t count = n - start < LANES ? n - start : LANES;
        Lanes a[6], t[3][3][3], f[3][3][3];
#pragma GCC unroll 6
        for (int e = 0; e < 6; e++) a[e] = 8 * load_some(weights + e * cells + start, count);
#pragma GCC unroll 9
        for (int k = 0; k < 8; k++) { /* all pairs of numbers but two curvatures */
            const float *row = numbers[k / 3][k % 3] + start;
            const Lanes before = load(row), here = load(row + 1), after = load(row + 2);
            t[k / 3][k % 3][MEAN] = 0.15625f * (before + after) + 0.6875f * here;
            t[k / 3][k % 3][SLOPE] = 0.5f * (after - before);
            t[k / 3][k % 3][CURVATURE] = before + after - 2 * here;
        }
#pragma GCC unroll 27
        for (int k = 0; k < 27; k++) f[k / 9][k / 3 % 3][k % 3] = a[0] - a[0];
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) {
            /* whether the difference is taken along axes 0, 1 and 2, instead of the mean */
            const int p = k / 4, q = k / 2 % 2, r = k % 2;
            const float scale = 1.0f / (float)(1 << 4 * (p + q + r));
            const Lanes g0 = scale * t[1 + p][q][r], g1 = scale * t[p][1 + q][r],
                        g2 = scale * t[p][q][1 + r];
            f[1 + p][q][r] += a[0] * g0 + a[1] * g1 + a[2] * g2;
            f[p][1 + q][r] += a[1] * g0 + a[3] * g1 + a[4] * g2;
            f[p][q][1 + r] += a[2] * g0 + a[4] * g1 + a[5] * g2;
        }
#pragma GCC unroll 27
        for (int k = 0; k < 27; k++)
            if (is_needed(k / 9, k / 3 % 3, k % 3))
                store(fluxes[k / 9][k / 3 % 3][k % 3] + start + 1, f[k / 9][k / 3 % 3][k % 3]);
    }
}

/* Transpose of `slope_of`; `mean_of` and `curvature_of` are symmetric. */
INLINE float slope_transpose(float before, float after) { return 0.5f * (before - after); }

/* Transpose along the last axis: fluxes for the numbers along axes 0 and 1. */
INLINE void gather_last_axis(const Grid *grid, float *const *fluxes, const int has_mean,
                             const int has_curvature, float *sum) {
    const int32_t n = grid->shape[2];
    const int32_t before = neighbour_index(grid, 2, -1), after = neighbour_index(grid, 2, n);
    float *mean = fluxes[MEAN], *slope = fluxes[SLOPE], *curvature = fluxes[CURVATURE];
    for (int c = 0; c < NUMBERS; c++) {
        const float sign = c == SLOPE && !grid->periodic[2] ? -1.0f : 1.0f;
        if ((c == MEAN && !has_mean) || (c == CURVATURE && !has_curvature)) continue;
        fluxes[c][0] = sign * fluxes[c][1 + before];
        fluxes[c][n + 1] = sign * fluxes[c][1 + after];
    }
#pragma omp simd
    for (int32_t j = 1; j <= n; j++) {
        float total = slope_transpose(slope[j - 1], slope[j + 1]);
        if (has_mean) total += mean_of(mean[j - 1], mean[j], mean[j + 1]);
        if (has_curvature) total += curvature_of(curvature[j - 1], curvature[j], curvature[j + 1]);
        sum[j] = total;
    }
}

/* Line, from -2 to the number of lines plus one, of a periodic axis. */
INLINE int32_t wrap_line(int32_t line, int32_t lines) { return (line + 2 * lines) % lines; }

/* Place of a line, from -2 on, among three that are kept. */
INLINE int ring_place(int32_t line) { return (line + 3) % 3; }

/* Transpose along axis 1: fluxes of a line for the numbers along axis 0. */
static void gather_second_axis(const Grid *grid, int32_t line, float *const back[3][3][3],
                               float *const *sums) {
    const int32_t n = grid->shape[2];
    const int is_first = line == 0 && !grid->periodic[1];
    const int is_last = line == grid->shape[1] - 1 && !grid->periodic[1];
    float *const(*before)[3] = back[ring_place(is_first ? line : line - 1)];
    float *const(*here)[3] = back[ring_place(line)];
    float *const(*after)[3] = back[ring_place(is_last ? line : line + 1)];
    const float sign_before = is_first ? -1.0f : 1.0f, sign_after = is_last ? -1.0f : 1.0f;
    for (int a = 0; a < NUMBERS; a++) {
        const float *m0 = before[a][MEAN], *m1 = here[a][MEAN], *m2 = after[a][MEAN];
        const float *s0 = before[a][SLOPE], *s2 = after[a][SLOPE];
        const float *c0 = before[a][CURVATURE], *c1 = here[a][CURVATURE], *c2 = after[a][CURVATURE];
        float *sum = sums[a];
#pragma omp simd
        for (int32_t j = 1; j <= n; j++)
            sum[j] = mean_of(m0[j], m1[j], m2[j]) +
                     slope_transpose(sign_before * s0[j], sign_after * s2[j]);
        if (a == CURVATURE) continue;
#pragma omp simd
        for (int32_t j = 1; j <= n; j++) sum[j] += curvature_of(c0[j], c1[j], c2[j]);
    }
}

/* Transpose along axis 0: add the fluxes of a line of plane i to three planes of a slab. */
static void scatter_first_axis(const Grid *grid, float *const *sums, int32_t i, int32_t line,
                               int32_t from, int32_t to, float *y) {
    const int32_t n = grid->shape[2];
    const float *mean = sums[MEAN] + 1, *slope = sums[SLOPE] + 1, *curvature = sums[CURVATURE] + 1;
    for (int k = 0; k < 3; k++) {
        const int32_t plane = neighbour_index(grid, 0, i + k - 1);
        if (plane < from || plane >= to) continue;
        const float m = k == 1 ? 0.6875f : 0.15625f, s = 0.5f * (float)(k - 1);
        const float c = k == 1 ? -2.0f : 1.0f;
        float *row = y + ((int64_t)plane * grid->shape[1] + line) * n;
#pragma omp simd
        for (int32_t j = 0; j < n; j++) row[j] += m * mean[j] + s * slope[j] + c * curvature[j];
    }
}

/* Fluxes of a line of plane i, from -1 to the number of lines, for the numbers along axes 0 and 1.

   `rows.first` holds the numbers along axis 0 of the line and of its neighbours. */
static void evaluate_line(const Grid *grid, const float *weights, int32_t i, int32_t line,
                          const RowBuffers *rows) {
    const int32_t n = grid->shape[2], lines = grid->shape[1];
    const int32_t before = grid->periodic[1] ? line - 1 : clamp_index(line - 1, lines);
    const int32_t after = grid->periodic[1] ? line + 1 : clamp_index(line + 1, lines);
    const int64_t row = (int64_t)i * lines + neighbour_index(grid, 1, line);
    evaluate_second_axis(n, rows->first[ring_place(before)], rows->first[ring_place(line)],
                         rows->first[ring_place(after)], rows->second);
    evaluate_fluxes(n, weights + row * n, grid->cells, rows->second, rows->third);
    for (int a = 0; a < NUMBERS; a++)
        for (int b = 0; b < NUMBERS - (a == CURVATURE); b++) {
            float *const *fluxes = rows->third[a][b];
            float *sum = rows->back[ring_place(line)][a][b];
            if (a == CURVATURE || b == CURVATURE)
                gather_last_axis(grid, fluxes, 1, 0, sum);
            else if (a == MEAN && b == MEAN)
                gather_last_axis(grid, fluxes, 0, 1, sum);
            else
                gather_last_axis(grid, fluxes, 1, 1, sum);
        }
}

/* Planes from ... to of y = K x. Along a periodic axis, the lines beyond both ends come twice. */
static void stiffness_slab_3d(const Level *level, const float *weights, const float *x, float *y,
                              int32_t from, int32_t to, float *memory) {
    const Grid *grid = &level->grid;
    const int32_t n = grid->shape[2], lines = grid->shape[1];
    const int32_t beyond = grid->periodic[1] ? 1 : 0;
    const int64_t plane = (int64_t)lines * n;
    const RowBuffers rows = split_row_buffers(memory, n);
    memset(y + from * plane, 0, sizeof(float) * (size_t)((to - from) * plane));
    for (int32_t s = from - 1; s <= last_overlap(grid, 0, from, to); s++) {
        const int32_t i = existing_index(grid, 0, s);
        if (i < 0) continue;
        for (int32_t line = -2 * beyond; line <= 0; line++)
            evaluate_first_axis(grid, x, i, wrap_line(line, lines), rows.first[ring_place(line)]);
        for (int32_t line = -beyond; line < lines + beyond; line++) {
            if (line + 1 < lines + 2 * beyond && line >= 0)
                evaluate_first_axis(grid, x, i, wrap_line(line + 1, lines),
                                    rows.first[ring_place(line + 1)]);
            evaluate_line(grid, weights, i, line, &rows);
            if (line > 0) {
                gather_second_axis(grid, line - 1, rows.back, rows.sums);
                scatter_first_axis(grid, rows.sums, i, line - 1, from, to, y);
            }
        }
        if (beyond) continue;
        gather_second_axis(grid, lines - 1, rows.back, rows.sums);
        scatter_first_axis(grid, rows.sums, i, lines - 1, from, to, y);
    }
}

/* Number of threads for a level. */
static int threads_for(const Hierarchy *h, const Level *level) {
    const int64_t worth = level->grid.cells / CELLS_PER_THREAD;
    const int32_t most = level->grid.shape[slab_axis(h->d)];
    int threads = worth < h->threads ? (int)worth : h->threads;
    threads = threads < most ? threads : most;
    return threads < 1 ? 1 : threads;
}

/* Row buffers of a thread. */
static float *buffers_of(const Hierarchy *h, int part) {
    return h->row_buffers + (int64_t)part * ROW_BUFFERS * (h->level[0].grid.shape[2] + ROW_MARGIN);
}

/* y = K x for one field of a level. */
static void stiffness_of(const Hierarchy *h, Level *level, int f, const float *x, float *y) {
    const int d = h->d, threads = threads_for(h, level);
    const int32_t size = level->grid.shape[slab_axis(d)];
    const float *weights = weights_of(h, level, f);
    if (d < 3) pad_rows(&level->grid, x, level->padded);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int part = 0; part < threads; part++) {
        const int32_t from = slab_begin(size, part, threads),
                      to = slab_begin(size, part + 1, threads);
        if (d < 3) {
            stiffness_slab_any(d, level, weights, from, to);
            geonet_fold_rows(&level->grid, from, to, level->summed, y);
        } else
            stiffness_slab_3d(level, weights, x, y, from, to, buffers_of(h, part));
    }
    if (!level->mass) return;
    const float *mass = level->mass + f * level->grid.cells;
    PARALLEL
    for (int64_t i = 0; i < level->grid.cells; i++) y[i] += mass[i] * x[i];
}

/* y = K x on a level. */
static void stiffness(const Hierarchy *h, Level *level, const float *x, float *y) {
    const int64_t cells = level->grid.cells;
    for (int f = 0; f < h->fields; f++) stiffness_of(h, level, f, x + f * cells, y + f * cells);
}

/* ---- the diagonal of the stiffness */

INLINE void diagonal_any(const int d, Level *level, const float *weights, float *result) {
    const Grid *grid = &level->grid;
    const int32_t n = grid->shape[2];
    memset(level->summed, 0, sizeof(float) * (size_t)(grid->cells / n * (n + 2)));
    for (int32_t line = 0; line < grid->shape[1]; line++) {
        int64_t rows[3];
        tap_rows(d, grid, 0, line, n + 2, rows);
        const int64_t cell = (int64_t)line * n;
        for (int k = 0; k < tap_row_count(d); k++)
            for (int l = 0; l < 3; l++) {
                float *to = level->summed + rows[k] + l;
                for (int q = 0; q < 2; q++)
                    for (int p = 0; p < leading_points(d); p++) {
                        const float *a =
                            weights + (int64_t)((2 * p + q) * entries(d)) * grid->cells + cell;
                        const float last = (float)(leading_weight(d, 0, 0, p, k) * W[1][q][l]);
                        const float first = (float)(leading_weight(d, 1, 0, p, k) * W[0][q][l]);
                        const int64_t N = grid->cells;
#pragma omp simd
                        for (int32_t j = 0; j < n; j++) {
                            if (d == 1) to[j] += a[j] * last * last;
                            if (d == 2)
                                to[j] += a[j] * first * first + 2 * a[N + j] * first * last +
                                         a[2 * N + j] * last * last;
                        }
                    }
            }
    }
    geonet_fold_rows(grid, 0, grid->cells / n, level->summed, result);
}

/* The diagonal in 3D: a sum over entries (a, b) of A of products of three filters with three taps.
   Like `stiffness_slab_3d` it gathers from cells and from their reflections beyond the faces. */

/* Sum over both points of the product of two B-splines or their slopes, by tap. */
INLINE float squared_tap(int slopes, int tap) {
    const double *const first = W[slopes > 0][0], *const second = W[slopes > 1][0];
    const double *const first_beside = W[slopes > 0][1], *const second_beside = W[slopes > 1][1];
    return (float)(first[tap] * second[tap] + first_beside[tap] * second_beside[tap]);
}

static void diagonal_row_3d(const Grid *grid, const float *weights, int32_t i, int32_t line,
                            float *row, float *to) {
    const int32_t before = neighbour_index(grid, 2, -1);
    const int32_t after = neighbour_index(grid, 2, grid->shape[2]);
    const int32_t n = grid->shape[2], at[2] = {i, line};
    for (int32_t j = 0; j < n; j++) to[j] = 0;
    for (int a = 0, e = 0; a < 3; a++)
        for (int b = a; b < 3; b++, e++) {
            const float *plane = weights + e * grid->cells;
            float taps[3][3]; /* by axis, for the cells before, here and after */
            for (int axis = 0; axis < 3; axis++)
                for (int k = 0; k < 3; k++)
                    taps[axis][k] = squared_tap((a == axis) + (b == axis), 2 - k);
            for (int32_t j = 0; j < n; j++) row[j + 1] = 0;
            for (int k = 0; k < 9; k++) {
                const int offset[2] = {k / 3, k % 3};
                float tap = a == b ? 1.0f : 2.0f;
                int32_t cell[2];
                for (int axis = 0; axis < 2; axis++) {
                    const int32_t wanted = at[axis] + offset[axis] - 1;
                    const int is_odd = (a == axis) != (b == axis);
                    cell[axis] = neighbour_index(grid, axis, wanted);
                    tap *= taps[axis][offset[axis]];
                    if (is_odd && cell[axis] != wanted && !grid->periodic[axis]) tap = -tap;
                }
                if (tap == 0.0f) continue;
                const float *from = plane + ((int64_t)cell[0] * grid->shape[1] + cell[1]) * n;
#pragma omp simd
                for (int32_t j = 0; j < n; j++) row[j + 1] += tap * from[j];
            }
            const float sign = (a == 2) != (b == 2) && !grid->periodic[2] ? -1.0f : 1.0f;
            row[0] = sign * row[1 + before];
            row[n + 1] = sign * row[1 + after];
#pragma omp simd
            for (int32_t j = 0; j < n; j++)
                to[j] += taps[2][0] * row[j] + taps[2][1] * row[j + 1] + taps[2][2] * row[j + 2];
        }
}

/* 1 / diagonal of K for one field of a level. */
static void diagonal_of(const Hierarchy *h, Level *level, int f) {
    const Grid *grid = &level->grid;
    const int threads = threads_for(h, level);
    const float *weights = weights_of(h, level, f);
    const float *mass = level->mass ? level->mass + f * grid->cells : NULL;
    float *result = level->inverse_diagonal + f * grid->cells;
    if (h->d == 1) diagonal_any(1, level, weights, result);
    if (h->d == 2) diagonal_any(2, level, weights, result);
    if (h->d == 3) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
        for (int part = 0; part < threads; part++)
            for (int32_t i = slab_begin(grid->shape[0], part, threads);
                 i < slab_begin(grid->shape[0], part + 1, threads); i++)
                for (int32_t line = 0; line < grid->shape[1]; line++)
                    diagonal_row_3d(
                        grid, weights, i, line, buffers_of(h, part),
                        result + ((int64_t)i * grid->shape[1] + line) * grid->shape[2]);
    }
    PARALLEL
    for (int64_t i = 0; i < grid->cells; i++)
        result[i] = 1.0f / (result[i] + (mass ? mass[i] : 0.0f));
}

/* 1 / diagonal of K on a level, and the factor of the projection onto the constraint. */
static void diagonal(const Hierarchy *h, Level *level) {
    const int64_t cells = level->grid.cells;
    for (int f = 0; f < h->fields; f++) diagonal_of(h, level, f);
    if (h->fields == 1) return;
    memset(level->constraint, 0, sizeof(float) * (size_t)cells);
    for (int f = 0; f < h->fields; f++) {
        const float *inverse = level->inverse_diagonal + f * cells;
        const float square = (float)(h->field_weights[f] * h->field_weights[f]);
        for (int64_t i = 0; i < cells; i++) level->constraint[i] += square * inverse[i];
    }
    for (int64_t i = 0; i < cells; i++) level->constraint[i] = 1.0f / level->constraint[i];
}

/* z = D^-1 (g - w p), with the field p for which z satisfies the constraint. z may be g. */
static void precondition(const Hierarchy *h, const Level *level, const float *g, float *z) {
    const int64_t cells = level->grid.cells;
    const int threads = threads_for(h, level);
    const float *inverse = level->inverse_diagonal;
    if (h->fields == 1) {
        PARALLEL
        for (int64_t i = 0; i < cells; i++) z[i] = inverse[i] * g[i];
        return;
    }
    float *multiplier = level->scratch;
    memset(multiplier, 0, sizeof(float) * (size_t)cells);
    for (int f = 0; f < h->fields; f++) {
        const float weight = (float)h->field_weights[f];
        const float *own = inverse + f * cells, *from = g + f * cells;
        PARALLEL
        for (int64_t i = 0; i < cells; i++) multiplier[i] += weight * own[i] * from[i];
    }
    PARALLEL
    for (int64_t i = 0; i < cells; i++) multiplier[i] *= level->constraint[i];
    for (int f = 0; f < h->fields; f++) {
        const float weight = (float)h->field_weights[f];
        const float *own = inverse + f * cells, *from = g + f * cells;
        float *to = z + f * cells;
        PARALLEL
        for (int64_t i = 0; i < cells; i++) to[i] = own[i] * (from[i] - weight * multiplier[i]);
    }
}

/* ---- transfers between levels, axis by axis */

/* out = T in along an axis, with n_in columns and n_out rows of T. */
static void apply(const float *in, float *out, int64_t outer, int32_t n_in, int32_t n_out,
                  int64_t inner, Band band, int threads) {
    const int32_t width = band.width;
#pragma omp parallel for collapse(2) num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t o = 0; o < outer; o++)
        for (int32_t i = 0; i < n_out; i++) {
            const float *from = in + (o * n_in + band.first[i]) * inner;
            float *to = out + (o * n_out + i) * inner;
            const float *w = band.taps + (int64_t)i * width;
            if (band.first[i] + width > n_in) {
                for (int64_t j = 0; j < inner; j++) to[j] = 0;
                for (int32_t k = 0; k < width; k++) {
                    const float *row = in + (o * n_in + (band.first[i] + k) % n_in) * inner;
                    for (int64_t j = 0; j < inner; j++) to[j] += w[k] * row[j];
                }
            } else if (inner == 1) {
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

/* Apply a band along the axes from ... until, to an array of the shape; updates the shape. */
static void transfer(const float *x, float *y, int32_t *shape, const int32_t *target, int from,
                     int until, const Band *bands, float *const buffers[2], int threads) {
    const int step = from < until ? 1 : -1;
    for (int axis = from; axis != until; axis += step) {
        float *to = axis == until - step ? y : buffers[axis % 2];
        int64_t outer = 1, inner = 1;
        for (int a = 0; a < axis; a++) outer *= shape[a];
        for (int a = axis + 1; a < 3; a++) inner *= shape[a];
        apply(x, to, outer, shape[axis], target[axis], inner, bands[axis], threads);
        shape[axis] = target[axis];
        x = to;
    }
}

/* Coefficients of the next coarser level to this one: the same spline if cells are halved. */
static void prolong(const Hierarchy *h, const Level *fine, const Level *coarse, const float *x,
                    float *y) {
    float *const buffers[2] = {fine->scratch, fine->scratch + fine->grid.cells};
    for (int f = 0; f < h->fields; f++) {
        int32_t shape[3];
        memcpy(shape, coarse->grid.shape, sizeof shape);
        transfer(x + f * coarse->grid.cells, y + f * fine->grid.cells, shape, fine->grid.shape,
                 3 - h->d, 3, fine->prolong, buffers, threads_for(h, fine));
    }
}

/* Transpose of `prolong`. */
static void restrict_to(const Hierarchy *h, const Level *fine, const Level *coarse, const float *x,
                        float *y) {
    float *const buffers[2] = {fine->scratch, fine->scratch + fine->grid.cells};
    for (int f = 0; f < h->fields; f++) {
        int32_t shape[3];
        memcpy(shape, fine->grid.shape, sizeof shape);
        transfer(x + f * fine->grid.cells, y + f * coarse->grid.cells, shape, coarse->grid.shape, 2,
                 2 - h->d, fine->restriction, buffers, threads_for(h, fine));
    }
}

/* Average planes (2^d, entries, cells) of the weights over coarser half-cells along one axis, in
   1D and 2D.

   A cell has two half-cells along an axis, one around each point. */
static void coarsen_axis(int d, const float *in, const int32_t *shape_in, float *out,
                         const int32_t *shape_out, int axis, const Level *fine) {
    const int bit = d == 2 && axis == 1 ? 2 : 1;
    const int64_t cells_in = (int64_t)shape_in[0] * shape_in[1] * shape_in[2];
    const int64_t cells_out = (int64_t)shape_out[0] * shape_out[1] * shape_out[2];
    int64_t outer = 1, inner = 1;
    for (int a = 0; a < axis; a++) outer *= shape_in[a];
    for (int a = axis + 1; a < 3; a++) inner *= shape_in[a];
    const int32_t n_in = shape_in[axis], n_out = shape_out[axis], width = fine->average[axis].width;
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
                    const int32_t first = fine->average[axis].first[half];
                    const float *w = fine->average[axis].taps + (int64_t)half * width;
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

/* The same in 3D, for planes (entries, cells) and coarser cells. */
static void average_cells(const float *in, const int32_t *shape_in, float *out,
                          const int32_t *shape_out, int axis, const Level *fine, int threads) {
    int64_t outer = entries(3), inner = 1;
    for (int a = 0; a < axis; a++) outer *= shape_in[a];
    for (int a = axis + 1; a < 3; a++) inner *= shape_in[a];
    apply(in, out, outer, shape_in[axis], shape_out[axis], inner, fine->average[axis], threads);
}

/* Weights of a field on the next coarser level: means, in the units of the coarser level. */
static void coarsen_of(const Hierarchy *h, const Level *fine, Level *coarse, int f) {
    const int d = h->d, threads = threads_for(h, coarse);
    const float *from = weights_of(h, fine, f);
    float *result = weights_of(h, coarse, f);
    int32_t shape[3], next[3], axes[3], count = 0;
    memcpy(shape, fine->grid.shape, sizeof shape);
    for (int axis = 3 - d; axis < 3; axis++)
        if (coarse->grid.shape[axis] != shape[axis]) axes[count++] = axis;
    for (int k = 0; k < count; k++) {
        float *to = k == count - 1 ? result : h->coarsening[k];
        memcpy(next, shape, sizeof shape);
        next[axes[k]] = coarse->grid.shape[axes[k]];
        if (d == 3)
            average_cells(from, shape, to, next, axes[k], fine, threads_for(h, fine));
        else
            coarsen_axis(d, from, shape, to, next, axes[k], fine);
        memcpy(shape, next, sizeof shape);
        from = to;
    }
    float volume = 1;
    for (int axis = 3 - d; axis < 3; axis++) volume *= fine->ratio[axis];
    const int m = entries(d);
    for (int point = 0; point < weight_points(d); point++)
        for (int e = 0; e < m; e++) {
            int i = 0, rest = e; /* entry e is (i, j) of the upper triangle */
            while (rest >= d - i) rest -= d - i++;
            const int j = i + rest;
            const float scale = volume / (fine->ratio[3 - d + i] * fine->ratio[3 - d + j]);
            float *plane = result + (int64_t)(point * m + e) * coarse->grid.cells;
            PARALLEL
            for (int64_t c = 0; c < coarse->grid.cells; c++) plane[c] *= scale;
        }
}

/* Weights and mass of the next coarser level. */
static void coarsen(const Hierarchy *h, const Level *fine, Level *coarse) {
    for (int f = 0; f < h->fields; f++) coarsen_of(h, fine, coarse, f);
    if (fine->mass) restrict_to(h, fine, coarse, fine->mass, coarse->mass);
}

/* ---- multigrid */

/* Inner product on a level, the same for any number of threads. */
static double dot(const Hierarchy *h, const Level *level, const float *a, const float *b) {
    const int64_t n = unknowns(h, level);
    const int threads = threads_for(h, level);
    double total = 0;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t start = 0; start < n; start += SUM_BLOCK) {
        const int64_t end = start + SUM_BLOCK < n ? start + SUM_BLOCK : n;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = start; i < end; i++) sum += a[i] * b[i];
        h->block_sums[start / SUM_BLOCK] = sum;
    }
    for (int64_t k = 0; k * SUM_BLOCK < n; k++) total += h->block_sums[k];
    return total;
}

/* Square of the part of g that no multiple w_f p of the constraint explains. Overwrites r. */
static double residual_square(const Hierarchy *h, Level *level, const float *g) {
    if (h->fields == 1) return dot(h, level, g, g);
    const int64_t cells = level->grid.cells;
    double squares = 0;
    for (int f = 0; f < h->fields; f++) squares += h->field_weights[f] * h->field_weights[f];
    memset(level->scratch, 0, sizeof(float) * (size_t)cells);
    for (int f = 0; f < h->fields; f++) {
        const float weight = (float)(h->field_weights[f] / squares);
        for (int64_t i = 0; i < cells; i++) level->scratch[i] += weight * g[f * cells + i];
    }
    for (int f = 0; f < h->fields; f++) {
        const float weight = (float)h->field_weights[f];
        for (int64_t i = 0; i < cells; i++)
            level->r[f * cells + i] = g[f * cells + i] - weight * level->scratch[i];
    }
    return dot(h, level, level->r, level->r);
}

/* Squares of K m and of m, for m = mode, K m = work and r = D^-1 K m, in the norms of D^-1 and D: in
   them D^-1 K is symmetric. */
static void measure_mode(const Hierarchy *h, const Level *level, double *image, double *mode) {
    const int64_t n = unknowns(h, level), blocks = n / SUM_BLOCK + 1;
    const int threads = threads_for(h, level);
    double *sums = h->block_sums;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t k = 0; k < blocks; k++) {
        const int64_t end = (k + 1) * SUM_BLOCK < n ? (k + 1) * SUM_BLOCK : n;
        double own_image = 0, own_mode = 0;
#pragma omp simd reduction(+ : own_image, own_mode)
        for (int64_t i = k * SUM_BLOCK; i < end; i++) {
            own_image += (double)level->r[i] * level->work[i];
            own_mode += (double)level->mode[i] * level->mode[i] / level->inverse_diagonal[i];
        }
        sums[k] = own_image;
        sums[blocks + k] = own_mode;
    }
    *image = *mode = 0;
    for (int64_t k = 0; k < blocks; k++) *image += sums[k], *mode += sums[blocks + k];
}

/* Largest eigenvalue of D^-1 K by the power method, starting from the eigenvector of the last
   problem. */
static double largest_eigenvalue(const Hierarchy *h, Level *level) {
    const int64_t n = unknowns(h, level);
    const int steps = h->fresh ? 6 : 2, threads = threads_for(h, level);
    uint32_t state = 12345u;
    for (int64_t i = 0; h->fresh && i < n; i++) {
        state = state * 1664525u + 1013904223u;
        level->mode[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
    if (h->fields > 1) { /* the last mode satisfies the constraint of other weights */
        for (int64_t i = 0; i < n; i++) level->mode[i] /= level->inverse_diagonal[i];
        precondition(h, level, level->mode, level->mode);
    }
    double value = 1;
    for (int s = 0; s < steps; s++) {
        stiffness(h, level, level->mode, level->work);
        precondition(h, level, level->work, level->r);
        double norm, size;
        measure_mode(h, level, &norm, &size);
        value = sqrt(norm / size);
        const float scale = (float)(1 / sqrt(norm));
        PARALLEL
        for (int64_t i = 0; i < n; i++) level->mode[i] = scale * level->r[i];
    }
    return EIGENVALUE_MARGIN * value;
}

/* Chebyshev-Jacobi steps for K x = b on the upper part of the spectrum.

   From x = 0 if `fresh`. Overwrites work and r. */
static void smooth(const Hierarchy *h, Level *level, const float *b, float *x, int fresh) {
    const int64_t n = unknowns(h, level);
    const int threads = threads_for(h, level);
    const double top = level->largest_eigenvalue, bottom = top * SMALLEST_DAMPED;
    const double theta = (top + bottom) / 2, delta = (top - bottom) / 2, sigma = theta / delta;
    double rho = 1 / sigma;
    float *direction = level->r, *step = level->work;
    for (int s = 0; s < SMOOTHING_STEPS; s++) {
        const int is_zero = s == 0 && fresh;
        if (!is_zero) {
            stiffness(h, level, x, direction);
            PARALLEL
            for (int64_t i = 0; i < n; i++) direction[i] = b[i] - direction[i];
        }
        precondition(h, level, is_zero ? b : direction, direction);
        if (s == 0) {
            const float scale = (float)(1 / theta);
            PARALLEL
            for (int64_t i = 0; i < n; i++) {
                step[i] = scale * direction[i];
                x[i] = step[i] + (fresh ? 0.0f : x[i]);
            }
            continue;
        }
        const double next = 1 / (2 * sigma - rho);
        const float keep = (float)(next * rho), scale = (float)(2 * next / delta);
        rho = next;
        PARALLEL
        for (int64_t i = 0; i < n; i++) {
            step[i] = keep * step[i] + scale * direction[i];
            x[i] += step[i];
        }
    }
}

/* Index of the field that the constraint eliminates on the coarsest level: the largest weight. */
static int eliminated_field(const Hierarchy *h) {
    int pivot = 0;
    for (int f = 1; f < h->fields; f++)
        if (h->field_weights[f] > h->field_weights[pivot]) pivot = f;
    return pivot;
}

/* Unknowns of the coarsest level after the elimination of one field. */
static int64_t coarsest_unknowns(const Hierarchy *h) {
    const int64_t n = h->level[h->levels - 1].grid.cells;
    return h->fields == 1 ? n : (h->fields - 1) * n;
}

/* The k-th field that is not eliminated, and its share w / w_pivot of the eliminated one. */
INLINE int remaining_field(int k, int pivot, int fields) {
    return fields == 1 || k < pivot ? k : k + 1;
}

/* Matrix of one field on the coarsest level, (n, n). Without a mass a constant matrix removes its
   null space. */
static void assemble_coarsest(Hierarchy *h, int f, double *a) {
    Level *level = &h->level[h->levels - 1];
    const int64_t n = level->grid.cells;
    double mean = 0;
    for (int64_t i = 0; i < n; i++) {
        memset(level->x, 0, sizeof(float) * (size_t)n);
        level->x[i] = 1;
        stiffness_of(h, level, f, level->x, level->work);
        for (int64_t j = 0; j < n; j++) a[i * n + j] = level->work[j];
        mean += a[i * n + i] / (double)n;
    }
    for (int64_t i = 0; !level->mass && i < n * n; i++) a[i] += mean / (double)n;
}

/* Factor the matrix of the coarsest level. */
static void factor(Hierarchy *h) {
    const int64_t n = h->level[h->levels - 1].grid.cells, size = coarsest_unknowns(h);
    const int pivot = h->fields == 1 ? 0 : eliminated_field(h);
    double *a = h->factor, *own = h->fields == 1 ? a : a + size * size;
    for (int f = 0; f < h->fields; f++) assemble_coarsest(h, f, own + f * n * n);
    if (h->fields > 1) {
        const double *w = h->field_weights;
        for (int64_t r = 0; r < size; r++)
            for (int64_t c = 0; c < size; c++) {
                const int f = remaining_field((int)(r / n), pivot, h->fields);
                const int g = remaining_field((int)(c / n), pivot, h->fields);
                const int64_t at = r % n * n + c % n;
                a[r * size + c] = w[f] * w[g] / (w[pivot] * w[pivot]) * own[pivot * n * n + at] +
                                  (f == g ? own[f * n * n + at] : 0.0);
            }
    }
    double mean = 0;
    for (int64_t i = 0; i < size; i++) mean += a[i * size + i] / (double)size;
    for (int64_t i = 0; i < size; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = a[i * size + j];
            for (int64_t k = 0; k < j; k++) sum -= a[i * size + k] * a[j * size + k];
            a[i * size + j] =
                i == j ? sqrt(sum > 1e-12 * mean ? sum : 1e-12 * mean) : sum / a[j * size + j];
        }
}

static void solve_coarsest(const Hierarchy *h, const float *b, float *x) {
    const int64_t n = h->level[h->levels - 1].grid.cells, size = coarsest_unknowns(h);
    const int pivot = h->fields == 1 ? 0 : eliminated_field(h);
    const double *a = h->factor, *w = h->field_weights;
    double y[MAX_COARSEST];
    for (int64_t i = 0; i < size; i++) {
        const int f = remaining_field((int)(i / n), pivot, h->fields);
        double sum = b[f * n + i % n];
        if (h->fields > 1) sum -= w[f] / w[pivot] * b[pivot * n + i % n];
        for (int64_t k = 0; k < i; k++) sum -= a[i * size + k] * y[k];
        y[i] = sum / a[i * size + i];
    }
    for (int64_t i = size - 1; i >= 0; i--) {
        double sum = y[i];
        for (int64_t k = i + 1; k < size; k++) sum -= a[k * size + i] * y[k];
        y[i] = sum / a[i * size + i];
    }
    if (h->fields > 1) memset(x + pivot * n, 0, sizeof(float) * (size_t)n);
    for (int64_t i = 0; i < size; i++) {
        const int f = remaining_field((int)(i / n), pivot, h->fields);
        x[f * n + i % n] = (float)y[i];
        if (h->fields > 1) x[pivot * n + i % n] -= (float)(w[f] / w[pivot] * y[i]);
    }
}

/* One V-cycle from zero for K x = b on level l. */
static void cycle(Hierarchy *h, int l, const float *b, float *x) {
    Level *level = &h->level[l];
    const int64_t n = unknowns(h, level);
    if (l == h->levels - 1) {
        solve_coarsest(h, b, x);
        return;
    }
    Level *coarse = level + 1;
    const int threads = threads_for(h, level);
    smooth(h, level, b, x, 1);
    stiffness(h, level, x, level->r);
    PARALLEL
    for (int64_t i = 0; i < n; i++) level->r[i] = b[i] - level->r[i];
    restrict_to(h, level, coarse, level->r, coarse->b);
    cycle(h, l + 1, coarse->b, coarse->x);
    prolong(h, level, coarse, coarse->x, level->work);
    PARALLEL
    for (int64_t i = 0; i < n; i++) x[i] += level->work[i];
    smooth(h, level, b, x, 0);
}

INLINE float larger(float a, float b) { return a > b ? a : b; }

/* out = maximum of a field over each cell and its neighbours along one axis. */
static void neighbour_maximum(const Grid *grid, int axis, const float *in, float *out,
                              int threads) {
    int64_t inner = 1;
    const int32_t n = grid->shape[axis];
    for (int a = axis + 1; a < 3; a++) inner *= grid->shape[a];
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t line = 0; line < grid->cells / n / inner; line++)
        for (int32_t i = 0; i < n; i++) {
            const float *from = in + (line * n + i) * inner;
            float *to = out + (line * n + i) * inner;
            const int64_t before = (neighbour_index(grid, axis, i - 1) - i) * inner;
            const int64_t after = (neighbour_index(grid, axis, i + 1) - i) * inner;
#pragma omp simd
            for (int64_t j = 0; j < inner; j++)
                to[j] = larger(from[j], larger(from[j + before], from[j + after]));
        }
}

/* Add to A of a field on the finest level: damping + local_damping times the largest |residual| per
   volume of a cell and its neighbours, times the weight of the field. */
static void add_damping(Hierarchy *h, int f, const double *step, double damping,
                        double local_damping, const float *residual) {
    Level *finest = &h->level[0];
    const int64_t cells = finest->grid.cells;
    const int d = h->d, m = entries(d), threads = threads_for(h, finest);
    const double weight = h->fields == 1 ? 1 : h->field_weights[f];
    double volume = 1;
    for (int a = 0; a < d; a++) volume *= step[a];
    float *field = finest->scratch, *spare = field + cells;
    PARALLEL
    for (int64_t i = 0; i < cells; i++)
        field[i] = (float)(weight * damping + local_damping / volume * fabsf(residual[i]));
    for (int axis = 3 - d; axis < 3; axis++) {
        neighbour_maximum(&finest->grid, axis, field, spare, threads);
        float *swap = field;
        field = spare;
        spare = swap;
    }
    for (int point = 0; point < weight_points(d); point++)
        for (int a = 0; a < d; a++) {
            const float share = (float)(volume / (1 << d) / (step[a] * step[a]));
            float *plane =
                weights_of(h, finest, f) + (int64_t)(point * m + diagonal_entry(d, a)) * cells;
            PARALLEL
            for (int64_t i = 0; i < cells; i++) plane[i] += share * field[i];
        }
}

/* Replace the integrals of a density over cells by its integrals against the splines, along one
   axis: (1/6, 2/3, 1/6) of three cells. */
static void integrate_splines(const Grid *grid, int axis, const float *in, float *out) {
    int64_t inner = 1;
    const int32_t n = grid->shape[axis];
    for (int a = axis + 1; a < 3; a++) inner *= grid->shape[a];
    for (int64_t line = 0; line < grid->cells / n / inner; line++)
        for (int32_t i = 0; i < n; i++) {
            const float *row = in + line * n * inner, *here = row + i * inner;
            const float *before = row + neighbour_index(grid, axis, i - 1) * inner;
            const float *after = row + neighbour_index(grid, axis, i + 1) * inner;
            float *to = out + (line * n + i) * inner;
#pragma omp simd
            for (int64_t j = 0; j < inner; j++)
                to[j] = (before[j] + 4 * here[j] + after[j]) * (1.0f / 6.0f);
        }
}

/* Lump the mass matrix of a field on the finest level, from integrals over cells in `mass`. */
static void lump_mass(Hierarchy *h, int f) {
    Level *finest = &h->level[0];
    const int64_t cells = finest->grid.cells;
    float *mass = finest->mass + f * cells, *from = mass, *to = finest->scratch;
    for (int axis = 3 - h->d; axis < 3; axis++) {
        integrate_splines(&finest->grid, axis, from, to);
        from = to;
        to = to == finest->scratch ? finest->scratch + cells : finest->scratch;
    }
    memcpy(mass, from, sizeof(float) * (size_t)cells);
}

/* Prepare all levels, after adding the damping to A on the finest one. `mass` of the finest level, if
   any, holds integrals over cells. residual: (fields, cells). */
void geonet_multigrid_prepare(Hierarchy *h, const double *step, double damping,
                              double local_damping, const float *residual) {
    for (int f = 0; f < h->fields; f++) {
        add_damping(h, f, step, damping, local_damping, residual + f * h->level[0].grid.cells);
        if (h->level[0].mass) lump_mass(h, f);
    }
    for (int l = 0; l < h->levels; l++) {
        Level *level = &h->level[l];
        if (l > 0) coarsen(h, level - 1, level);
        if (l == h->levels - 1) break;
        diagonal(h, level);
        level->largest_eigenvalue = largest_eigenvalue(h, level);
    }
    h->fresh = 0;
    factor(h);
}

/* Copy b without the means of its fields: constants are in the null space of K. */
static void subtract_means(const Hierarchy *h, const Level *level, const float *b, float *g) {
    const int64_t cells = level->grid.cells;
    const int threads = threads_for(h, level);
    for (int f = 0; f < h->fields; f++) {
        const float *from = b + f * cells;
        float *to = g + f * cells;
        double mean = 0;
        for (int64_t i = 0; i < cells; i++) mean += from[i];
        mean = level->mass ? 0 : mean / (double)cells;
        PARALLEL
        for (int64_t i = 0; i < cells; i++) to[i] = (float)(from[i] - mean);
    }
}

/* Solve K x = b up to `tolerance` of |b| by conjugate gradients with multigrid, from zero.

   b and x: (fields, cells). b counts up to multiples of the constraint: w_f p for a field p.
   Returns the number of iterations. scratch: (4, fields, cells). */
int32_t geonet_multigrid_solve(Hierarchy *h, const float *b, float *x, float *scratch,
                               double tolerance, int32_t max_iterations) {
    Level *level = &h->level[0];
    const int64_t n = unknowns(h, level);
    const int threads = threads_for(h, level);
    float *p = scratch, *q = p + n, *z = q + n, *g = z + n;
    subtract_means(h, level, b, g);
    memset(x, 0, sizeof(float) * (size_t)n);
    double start = 0, gz = 0;
    int32_t step = 0;
    while (step < max_iterations) {
        const double now = residual_square(h, level, g);
        if (step == 0) start = now;
        if (!(now > tolerance * tolerance * start) || !(start > 0)) break;
        cycle(h, 0, g, z);
        const double next = dot(h, level, g, z);
        const float beta = step ? (float)(next / gz) : 0.0f;
        gz = next;
        if (step) {
            PARALLEL
            for (int64_t i = 0; i < n; i++) p[i] = z[i] + beta * p[i];
        } else
            memcpy(p, z, sizeof(float) * (size_t)n);
        stiffness(h, level, p, q);
        const double curvature = dot(h, level, p, q);
        if (!(curvature > 0) || !(gz > 0)) break;
        const float alpha = (float)(gz / curvature);
        PARALLEL
        for (int64_t i = 0; i < n; i++) {
            x[i] += alpha * p[i];
            g[i] -= alpha * q[i];
        }
        step++;
    }
    return step;
}

/* compiled.py compares these numbers with its own, so that it never calls an outdated
   library. */
const int32_t geonet_multigrid_abi[] = {MAX_LEVELS,  sizeof(Level), sizeof(Hierarchy), ROW_BUFFERS,
                                        ROW_MARGIN,  SUM_BLOCK,     MAX_COARSEST};
