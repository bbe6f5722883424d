/* Kernels of 2D paths with potentials in cosine series, each in one pass over memory.

   torch takes about thirty passes for the same; neural/transport has that version, which gives
   the same numbers to rounding. Arrays are single precision, except frames, which are double. An
   item is one time of one pair; threads share the items. OpenMP comes from torch's runtime,
   which is loaded already, so that there is only one team of threads. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#define VERSION 3 /* increment with every change of the interface to transport/compiled.py */
#define COARSE 32 /* cells per axis of the velocity */
#define BLOCK 64 /* points evaluated together */
#define FACE 1.000001f /* of the box, slightly wider */

/* x in [0, 1]; NaN becomes 0, so that every position lies in its table. */
INLINE float clamp_unit(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

/* Position of x in [0, 1] between nodes 0 ... last: the node before it, and the fraction to
   the next. */
INLINE int32_t node_before(float x, int32_t last, float *fraction) {
    const float scaled = clamp_unit(x) * (float)last;
    int32_t node = (int32_t)scaled;
    node = node < last ? node : last - 1;
    *fraction = scaled - (float)node;
    return node;
}

/* Vectors of the width of the registers, wider ones would spill. As many of them side by side
   as leave registers for ten sums of each and for the operands. */
#if defined(__AVX512F__)
#define WIDTH 16
#define SIDE 2
#elif defined(__AVX2__)
#define WIDTH 8
#define SIDE 1
#else
#define WIDTH 4
#define SIDE 1
#endif
typedef float Four __attribute__((vector_size(16), aligned(4)));
typedef float Wide __attribute__((vector_size(4 * WIDTH), aligned(4)));

/* u, its gradient and d11, d12, d22 of u at n * n points, six planes of n * n, of one pair.

   coefficients: (modes, modes). down: (3, n, modes), the cosines and their first and second
   derivatives at the points; across: (3, modes, n), the transpose. half: scratch, 3 * modes * n. */
static void evaluate_potential(const float *coefficients, int32_t modes, const float *down,
                               const float *across, int32_t n, float *half, float *planes) {
    static const int32_t position[3][3] = {{0, 2, 5}, {1, 4, -1}, {3, -1, -1}};
    memset(half, 0, sizeof(float) * 3 * (size_t)modes * (size_t)n);
    for (int32_t k = 0; k < 3; k++)
        for (int32_t m = 0; m < modes; m++)
            for (int32_t l = 0; l < modes; l++) {
                const float c = coefficients[m * modes + l];
                const float *from = across + (k * modes + l) * n;
                float *to = half + (k * modes + m) * n;
                for (int32_t j = 0; j < n; j++) to[j] += c * from[j];
            }
    memset(planes, 0, sizeof(float) * 6 * (size_t)n * (size_t)n);
    for (int32_t p = 0; p < 3; p++)
        for (int32_t k = 0; p + k < 3; k++)
            for (int32_t i = 0; i < n; i++) {
                float *to = planes + ((int64_t)position[p][k] * n + i) * n;
                for (int32_t m = 0; m < modes; m++) {
                    const float c = down[(p * n + i) * modes + m];
                    const float *from = half + (k * modes + m) * n;
                    for (int32_t j = 0; j < n; j++) to[j] += c * from[j];
                }
            }
}

/* Potentials of all pairs: planes (pairs, 6, n * n) of `evaluate_potential`; half (pairs, 3,
   modes, n). */
void geonet_potential(const float *coefficients, const float *down, const float *across,
                      float *half, float *planes, int32_t modes, int32_t n, int64_t pairs) {
#pragma omp parallel for schedule(static)
    for (int64_t pair = 0; pair < pairs; pair++)
        evaluate_potential(coefficients + pair * modes * modes, modes, down, across, n,
                           half + 3 * pair * modes * n, planes + 6 * pair * n * n);
}

/* Interleave planes (pairs, 6, n * n) at k / (n - 1) to nodes (pairs, n * n, 8): the gradient
   minus D2u x / 2 (see transport/potential.py), and d11, d12, d22. */
void geonet_nodes(const float *planes, float *nodes, int32_t n, int64_t pairs) {
#pragma omp parallel for schedule(static)
    for (int64_t line = 0; line < pairs * n; line++) {
        const int64_t plane = (int64_t)n * n, i = line % n;
        const float *g1 = planes + (6 * (line / n) + 1) * plane + i * n, *g2 = g1 + plane;
        const float *a = g2 + plane, *b = a + plane, *c = b + plane;
        const float x1 = (float)i / (float)(n - 1);
        float *to = nodes + 8 * line * n;
        for (int32_t j = 0; j < n; j++, to += 8) {
            const float x2 = (float)j / (float)(n - 1);
            to[0] = g1[j] - 0.5f * (a[j] * x1 + b[j] * x2);
            to[1] = g2[j] - 0.5f * (b[j] * x1 + c[j] * x2);
            to[2] = a[j];
            to[3] = b[j];
            to[4] = c[j];
            to[5] = to[6] = to[7] = 0.0f;
        }
    }
}

/* One Newton step for y + s grad u(y) = x from y = x - s v in a row: updates v1 and v2, and
   returns the largest |y + s grad u(y) - x|. */
INLINE float newton_row(const float *nodes, int32_t last, float s, float x1, float *v1, float *v2) {
    int32_t corner[COARSE];
    float y1[COARSE], y2[COARSE], down[COARSE], right[COARSE], result[COARSE][8], largest = 0.0f;
#pragma omp simd
    for (int32_t j = 0; j < COARSE; j++) {
        const float x2 = ((float)j + 0.5f) / COARSE;
        y1[j] = clamp_unit(x1 - s * v1[j]);
        y2[j] = clamp_unit(x2 - s * v2[j]);
        corner[j] = node_before(y1[j], last, &down[j]) * (last + 1);
        corner[j] += node_before(y2[j], last, &right[j]);
    }
    for (int32_t j = 0; j < COARSE; j++) { /* bilinear, all fields at once */
        const float *upper = nodes + 8 * (int64_t)corner[j], *lower = upper + 8 * (last + 1);
        for (int32_t k = 0; k < 8; k += 4) {
            const Four a = *(const Four *)(upper + k), b = *(const Four *)(upper + 8 + k);
            const Four c = *(const Four *)(lower + k), d = *(const Four *)(lower + 8 + k);
            const Four above = a + right[j] * (b - a), below = c + right[j] * (d - c);
            *(Four *)(result[j] + k) = above + down[j] * (below - above);
        }
    }
#pragma omp simd reduction(max : largest)
    for (int32_t j = 0; j < COARSE; j++) {
        const float x2 = ((float)j + 0.5f) / COARSE;
        const float a = result[j][2], b = result[j][3], c = result[j][4];
        const float g1 = result[j][0] + 0.5f * (a * y1[j] + b * y2[j]);
        const float g2 = result[j][1] + 0.5f * (b * y1[j] + c * y2[j]);
        const float miss1 = y1[j] - x1 + s * g1, miss2 = y2[j] - x2 + s * g2;
        /* The step moves y by -(I + s D2u)^-1 error; grad u follows to first order. */
        const float d11 = 1.0f + s * a, d12 = s * b, d22 = 1.0f + s * c;
        const float scale = 1.0f / (d11 * d22 - d12 * d12);
        const float back1 = scale * (d22 * miss1 - d12 * miss2);
        const float back2 = scale * (d11 * miss2 - d12 * miss1);
        v1[j] = g1 - (a * back1 + b * back2);
        v2[j] = g2 - (b * back1 + c * back2);
        largest = fabsf(miss1) > largest ? fabsf(miss1) : largest;
        largest = fabsf(miss2) > largest ? fabsf(miss2) : largest;
    }
    return largest;
}

/* Solve v = grad u(y), y + s v = x by Newton's method, at the centres x of COARSE * COARSE
   cells.

   nodes: (pairs, last + 1, last + 1, 8), of `geonet_nodes`.
   times: (time_count); s is the time minus a half.
   velocity: (2, pairs * time_count, COARSE * COARSE).
   Each row stops one step after |y + s grad u(y) - x| falls below `tolerance`. */
void geonet_velocity(const float *nodes, const float *times, float *velocity, int32_t last,
                     int32_t steps, float tolerance, int64_t time_count, int64_t items) {
    const int64_t own = 8 * (int64_t)(last + 1) * (last + 1);
#pragma omp parallel for schedule(static)
    for (int64_t line = 0; line < items * COARSE; line++) {
        const int64_t item = line / COARSE;
        const float x1 = ((float)(line % COARSE) + 0.5f) / COARSE;
        const float s = times[item % time_count] - 0.5f;
        float *v1 = velocity + line * COARSE, *v2 = v1 + items * COARSE * COARSE;
        memset(v1, 0, sizeof(float) * COARSE);
        memset(v2, 0, sizeof(float) * COARSE);
        for (int32_t step = 0; step <= steps; step++)
            if (newton_row(nodes + own * (item / time_count), last, s, x1, v1, v2) < tolerance)
                break;
    }
}

/* Cubic B-splines of a batch of densities on a box in the unit square.

   coefficients: (pairs, rows + 4, columns + 4), for rows * columns cells, two more on each side.
   down, across: side lengths of the box; the longer one is one. There is no mass beyond the box. */
typedef struct {
    const float *coefficients;
    int32_t rows, columns;
    float down, across;
} Splines;

/* Weights of four adjacent coefficients at s in [0, 1] between the middle two. */
INLINE void cubic_weights(float s, float *w0, float *w1, float *w2, float *w3) {
    const float r = 1.0f - s;
    *w0 = r * r * r * (1 / 6.0f);
    *w1 = 2 / 3.0f + s * s * (0.5f * s - 1.0f);
    *w2 = 2 / 3.0f + r * r * (0.5f * r - 1.0f);
    *w3 = s * s * s * (1 / 6.0f);
}

/* The first of the four coefficients for a position in [0, side], and the s of
   `cubic_weights`. */
INLINE int32_t stencil_start(float position, float side, int32_t cells, float *s) {
    const float scaled = clamp_unit(position / side) * (float)cells + 0.5f;
    int32_t first = (int32_t)scaled;
    first = first < cells ? first : cells;
    *s = scaled - (float)first;
    return first;
}

/* Density of a pair at `count` <= BLOCK points, clipped at zero. */
INLINE void evaluate_splines(const Splines *splines, int64_t pair, const float *y1, const float *y2,
                             int32_t count, float *result) {
    const int32_t row = splines->columns + 4;
    const float *table = splines->coefficients + pair * row * (splines->rows + 4);
    int32_t at[BLOCK];
    float w[4][BLOCK], s2[BLOCK], inside[BLOCK], sums[BLOCK][4];
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        float s1;
        const int32_t i = stencil_start(y1[j], splines->down, splines->rows, &s1);
        at[j] = i * row + stencil_start(y2[j], splines->across, splines->columns, &s2[j]);
        cubic_weights(s1, &w[0][j], &w[1][j], &w[2][j], &w[3][j]);
        inside[j] = clamp_unit(y1[j]) <= FACE * splines->down ? 1.0f : 0.0f;
        inside[j] = clamp_unit(y2[j]) <= FACE * splines->across ? inside[j] : 0.0f;
    }
    for (int32_t j = 0; j < count; j++) { /* down the four rows, four columns at once */
        const float *c = table + at[j];
        Four sum = w[0][j] * *(const Four *)c + w[1][j] * *(const Four *)(c + row);
        sum += w[2][j] * *(const Four *)(c + 2 * row) + w[3][j] * *(const Four *)(c + 3 * row);
        *(Four *)sums[j] = sum;
    }
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        float w0, w1, w2, w3;
        cubic_weights(s2[j], &w0, &w1, &w2, &w3);
        const float value =
            (w0 * sums[j][0] + w1 * sums[j][1]) + (w2 * sums[j][2] + w3 * sums[j][3]);
        result[j] = (value < 0.0f ? 0.0f : value) * inside[j]; /* NaN stays NaN */
    }
}

/* One block of `geonet_displaced_density`. */
static void density_block(const Splines *splines, int64_t pair, const float *x1, const float *x2,
                          const float *v1, const float *v2, float s, int32_t count, float *result) {
    float y1[BLOCK], y2[BLOCK];
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        y1[j] = x1[j] - s * v1[j];
        y2[j] = x2[j] - s * v2[j];
    }
    evaluate_splines(splines, pair, y1, y2, count, result);
}

/* Densities at x - s v for points x, each item with its own v and s.

   x1, x2: (points). v1, v2: (pairs * time_count, points). s: (time_count).
   result: (pairs * time_count, points). */
void geonet_displaced_density(const Splines *splines, const float *x1, const float *x2,
                              const float *v1, const float *v2, const float *s, float *result,
                              int64_t points, int64_t time_count, int64_t items) {
    const int64_t blocks = (points + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static)
    for (int64_t part = 0; part < items * blocks; part++) {
        const int64_t item = part / blocks, start = part % blocks * BLOCK;
        const int64_t from = item * points + start;
        const int32_t count = (int32_t)(points - start < BLOCK ? points - start : BLOCK);
        density_block(splines, item / time_count, x1 + start, x2 + start, v1 + from, v2 + from,
                      s[item % time_count], count, result + from);
    }
}

/* One block of `geonet_midpoint_densities`; the second derivatives of u are a, b, c. */
static void midpoint_block(const Splines *source, const Splines *target, int64_t pair,
                           const float *x1, const float *x2, const float *g1, const float *g2,
                           const float *a, const float *b, const float *c, int32_t count,
                           float *rho0, float *rho1, float *min_determinant,
                           float *max_eigenvalue) {
    density_block(source, pair, x1, x2, g1, g2, 0.5f, count, rho0);
    density_block(target, pair, x1, x2, g1, g2, -0.5f, count, rho1);
    float smallest = *min_determinant, steepest = *max_eigenvalue;
#pragma omp simd reduction(min : smallest) reduction(max : steepest)
    for (int32_t j = 0; j < count; j++) {
        const float trace = a[j] + c[j], minor = a[j] * c[j] - b[j] * b[j];
        const float det0 = 1.0f - 0.5f * (trace - 0.5f * minor);
        const float det1 = 1.0f + 0.5f * (trace + 0.5f * minor);
        const float half = 0.5f * (a[j] - c[j]);
        const float radius = 0.5f * fabsf(trace) + sqrtf(half * half + b[j] * b[j]);
        const float lower = det0 < det1 ? det0 : det1;
        smallest = lower < smallest ? lower : smallest;
        steepest = radius > steepest ? radius : steepest;
        rho0[j] *= det0 < 0.0f ? 0.0f : det0;
        rho1[j] *= det1 < 0.0f ? 0.0f : det1;
    }
    *min_determinant = smallest;
    *max_eigenvalue = steepest;
}

/* rho0 and rho1 at t = 1/2 at points x, and for every pair the smallest determinant of I -+
   D2u/2 and the largest |eigenvalue| of D2u.

   planes: (pairs, 6, points), of `geonet_potential`. rho0, rho1: (pairs, points).
   min_determinant, max_eigenvalue: (pairs). */
void geonet_midpoint_densities(const Splines *source, const Splines *target, const float *x1,
                               const float *x2, const float *planes, float *rho0, float *rho1,
                               float *min_determinant, float *max_eigenvalue, int64_t points,
                               int64_t pairs) {
#pragma omp parallel for schedule(static)
    for (int64_t pair = 0; pair < pairs; pair++) {
        min_determinant[pair] = HUGE_VALF;
        max_eigenvalue[pair] = 0.0f;
        for (int64_t start = 0; start < points; start += BLOCK) {
            const int32_t count = (int32_t)(points - start < BLOCK ? points - start : BLOCK);
            const float *g1 = planes + (6 * pair + 1) * points + start, *g2 = g1 + points;
            const float *a = g2 + points, *b = a + points, *c = b + points;
            const int64_t to = pair * points + start;
            midpoint_block(source, target, pair, x1 + start, x2 + start, g1, g2, a, b, c, count,
                           rho0 + to, rho1 + to, min_determinant + pair, max_eigenvalue + pair);
        }
    }
}

/* Matrices that resample v from its cells to a grid.

   Along the rows, (rows + 1, COARSE), with one unused row at the end: v1, its slope, and v2.
   Along the columns, transposed, (COARSE, padded) with columns padded to blocks: v1, its slope,
   v2, its slope. */
typedef struct {
    const float *v1_down, *v1_down_slope, *v2_down;
    const float *across[4];
    int32_t rows, columns, padded;
} Refinement;

/* v and its slopes d11, d12, d22 in a block of two rows, from `half`, which is resampled
   across only. */
INLINE void refine_rows(const Refinement *to, int32_t i, float half[4][COARSE][BLOCK],
                        float field[2][5][BLOCK]) {
    const float *v1 = to->v1_down + (int64_t)i * COARSE, *v2 = to->v2_down + (int64_t)i * COARSE;
    const float *slope = to->v1_down_slope + (int64_t)i * COARSE;
    for (int32_t start = 0; start < BLOCK; start += WIDTH * SIDE) {
        Wide sum[2][5][SIDE] = {0};
        for (int32_t k = 0; k < COARSE; k++)
            for (int32_t q = 0; q < SIDE; q++) {
                const int32_t j = start + WIDTH * q;
                const Wide y0 = *(const Wide *)&half[0][k][j], y1 = *(const Wide *)&half[1][k][j];
                const Wide y2 = *(const Wide *)&half[2][k][j], y3 = *(const Wide *)&half[3][k][j];
                for (int32_t r = 0; r < 2; r++) {
                    sum[r][0][q] += v1[r * COARSE + k] * y0;
                    sum[r][1][q] += v2[r * COARSE + k] * y2;
                    sum[r][2][q] += slope[r * COARSE + k] * y0;
                    sum[r][3][q] += v1[r * COARSE + k] * y1;
                    sum[r][4][q] += v2[r * COARSE + k] * y3;
                }
            }
        for (int32_t r = 0; r < 2; r++)
            for (int32_t f = 0; f < 5; f++)
                for (int32_t q = 0; q < SIDE; q++)
                    *(Wide *)&field[r][f][start + WIDTH * q] = sum[r][f][q];
    }
}

/* Resample cells to a block of columns: v1 and its slope, v2 and its slope. */
INLINE void refine_across(const Refinement *to, int32_t start, const float *v1, const float *v2,
                          float half[4][COARSE][BLOCK]) {
    for (int32_t f = 0; f < 4; f++)
        for (int32_t i = 0; i < COARSE; i++) {
            const float *cells = (f < 2 ? v1 : v2) + i * COARSE;
            for (int32_t j = 0; j < BLOCK; j += 4 * WIDTH) {
                const float *across = to->across[f] + start + j;
                Wide sum[4] = {0};
                for (int32_t k = 0; k < COARSE; k++, across += to->padded)
                    for (int32_t q = 0; q < 4; q++)
                        sum[q] += cells[k] * *(const Wide *)(across + WIDTH * q);
                for (int32_t q = 0; q < 4; q++) *(Wide *)&half[f][i][j + WIDTH * q] = sum[q];
            }
        }
}

/* A block of row i of a frame of `geonet_frames`, from the velocity and its slopes. */
INLINE void frame_row(const Splines *source, const Splines *target, int64_t pair,
                      float field[5][BLOCK], float x1, const float *x2, float t, double scale,
                      int32_t count, double *row) {
    float rho0[BLOCK], rho1[BLOCK], y1[BLOCK], y2[BLOCK];
    const float left = 1.0f - t;
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        y1[j] = x1 - t * field[0][j];
        y2[j] = x2[j] - t * field[1][j];
    }
    evaluate_splines(source, pair, y1, y2, count, rho0);
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        y1[j] = x1 + left * field[0][j];
        y2[j] = x2[j] + left * field[1][j];
    }
    evaluate_splines(target, pair, y1, y2, count, rho1);
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        const float a = field[2][j], b = field[3][j], c = field[4][j];
        const float trace = a + c, minor = a * c - b * b;
        const float det0 = 1.0f - t * (trace - t * minor);
        const float det1 = 1.0f + left * (trace + left * minor);
        const float mean = left * rho0[j] * det0 + t * rho1[j] * det1;
        row[j] = scale * (mean < 0.0f ? 0.0f : mean);
    }
}

/* Rows first ... last - 1 of a block of columns of a frame of `geonet_frames`. */
static void frame_block(const Splines *source, const Splines *target, int64_t pair,
                        const Refinement *to, const float *x1, const float *x2, const float *v1,
                        const float *v2, float t, double scale, int32_t start, int32_t first,
                        int32_t last, double *frame) {
    float half[4][COARSE][BLOCK], field[2][5][BLOCK];
    const int32_t count = to->columns - start < BLOCK ? to->columns - start : BLOCK;
    refine_across(to, start, v1, v2, half);
    for (int32_t i = first; i < last; i++) {
        if ((i - first) % 2 == 0) refine_rows(to, i, half, field);
        frame_row(source, target, pair, field[(i - first) % 2], x1[i], x2 + start, t, scale, count,
                  frame + (int64_t)i * to->columns + start);
    }
}

/* (1 - t) rho0 + t rho1 on a grid, times `scale`.

   x1, x2: (rows), (columns), cell centres of the grid in the unit square.
   velocity: (2, pairs * time_count, COARSE * COARSE), of geonet_velocity. times: (time_count).
   answer: double; the frame of an item starts at its entry of `begins`.
   Frames are cut into `parts` of their rows for the threads. */
void geonet_frames(const Splines *source, const Splines *target, const Refinement *to,
                   const float *x1, const float *x2, const float *velocity, const float *times,
                   double *answer, const int64_t *begins, double scale, int32_t parts,
                   int64_t time_count, int64_t items) {
    const int64_t blocks = (to->columns + BLOCK - 1) / BLOCK, cells = COARSE * COARSE;
#pragma omp parallel for schedule(static)
    for (int64_t work = 0; work < items * blocks * parts; work++) {
        const int64_t item = work / (blocks * parts), block = work / parts % blocks;
        const int64_t part = work % parts;
        frame_block(source, target, item / time_count, to, x1, x2, velocity + item * cells,
                    velocity + (items + item) * cells, times[item % time_count], scale,
                    (int32_t)(block * BLOCK), (int32_t)(to->rows * part / parts),
                    (int32_t)(to->rows * (part + 1) / parts), answer + begins[item]);
    }
}

/* transport/compiled.py compares these numbers with its own, so that it never calls an
   outdated library. */
const int32_t geonet_cosine_paths_abi[] = {VERSION, COARSE, BLOCK, sizeof(Splines),
                                           sizeof(Refinement)};
