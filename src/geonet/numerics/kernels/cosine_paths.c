/* The loops in which a 2D path spends its time, each in one pass over memory.

   torch has no operation that does all of it at a point, and takes some thirty passes instead; see
   potential.py, halfway.py, velocity.py, splines.py and frames.py, which is what runs where this was
   not compiled, with the same answer to rounding.
   Arrays are single precision, but for the frames, which are double. An item is one time of one
   pair; threads share them out. OpenMP's functions are those that torch has loaded already, with
   the threads that it has: others would have to share the processor with them. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#define VERSION 3 /* one more whenever a function or a struct changes, here and in loops.py */
#define COARSE 32 /* cells per axis on which the velocity is found */
#define BLOCK 64 /* points that are looked up together */
#define FACE 1.000001f /* of the box, a little wider than it is */

/* x in [0, 1]; what is no number is 0, so that every place is somewhere in its table. */
INLINE float clamped(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

/* The place of x in [0, 1] between nodes 0 ... last: the node before it, and the way to the next. */
INLINE int32_t node_before(float x, int32_t last, float *way) {
    const float scaled = clamped(x) * (float)last;
    int32_t node = (int32_t)scaled;
    node = node < last ? node : last - 1;
    *way = scaled - (float)node;
    return node;
}

/* Vectors as wide as the processor's registers: a wider one would live in memory. As many of them
   side by side as leave its registers room for ten sums of each, and for what is added. */
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

/* u, its gradient and d11, d12, d22 of u at n * n places, six planes of n * n, of one pair.

   coefficients: (modes, modes). down: (3, n, modes), the cosines and their first and second
   derivatives at the places; across: (3, modes, n), the same transposed. half: room for 3 * modes
   * n numbers. */
static void potential_of(const float *coefficients, int32_t modes, const float *down,
                         const float *across, int32_t n, float *half, float *planes) {
    static const int32_t place[3][3] = {{0, 2, 5}, {1, 4, -1}, {3, -1, -1}};
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
                float *to = planes + ((int64_t)place[p][k] * n + i) * n;
                for (int32_t m = 0; m < modes; m++) {
                    const float c = down[(p * n + i) * modes + m];
                    const float *from = half + (k * modes + m) * n;
                    for (int32_t j = 0; j < n; j++) to[j] += c * from[j];
                }
            }
}

/* Potentials of all pairs: planes (pairs, 6, n * n) of `potential_of`; half (pairs, 3, modes, n). */
void geonet_potential(const float *coefficients, const float *down, const float *across,
                      float *half, float *planes, int32_t modes, int32_t n, int64_t pairs) {
#pragma omp parallel for schedule(static)
    for (int64_t pair = 0; pair < pairs; pair++)
        potential_of(coefficients + pair * modes * modes, modes, down, across, n,
                     half + 3 * pair * modes * n, planes + 6 * pair * n * n);
}

/* From planes (pairs, 6, n * n) at k / (n - 1) to what a place needs side by side, (pairs, n * n, 8):
   the gradient less D2u x / 2, see potential_table() in potential.py, and d11, d12, d22. */
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

/* A step of Newton's method for y + s grad u(y) = x from y = x - s v in a row: v1 and v2 change,
   and it gives the largest |y + s grad u(y) - x|. */
INLINE float newton(const float *nodes, int32_t last, float s, float x1, float *v1, float *v2) {
    int32_t corner[COARSE];
    float y1[COARSE], y2[COARSE], down[COARSE], right[COARSE], found[COARSE][8], largest = 0.0f;
#pragma omp simd
    for (int32_t j = 0; j < COARSE; j++) {
        const float x2 = ((float)j + 0.5f) / COARSE;
        y1[j] = clamped(x1 - s * v1[j]);
        y2[j] = clamped(x2 - s * v2[j]);
        corner[j] = node_before(y1[j], last, &down[j]) * (last + 1);
        corner[j] += node_before(y2[j], last, &right[j]);
    }
    for (int32_t j = 0; j < COARSE; j++) { /* bilinear, all fields at once */
        const float *upper = nodes + 8 * (int64_t)corner[j], *lower = upper + 8 * (last + 1);
        for (int32_t k = 0; k < 8; k += 4) {
            const Four a = *(const Four *)(upper + k), b = *(const Four *)(upper + 8 + k);
            const Four c = *(const Four *)(lower + k), d = *(const Four *)(lower + 8 + k);
            const Four above = a + right[j] * (b - a), below = c + right[j] * (d - c);
            *(Four *)(found[j] + k) = above + down[j] * (below - above);
        }
    }
#pragma omp simd reduction(max : largest)
    for (int32_t j = 0; j < COARSE; j++) {
        const float x2 = ((float)j + 0.5f) / COARSE;
        const float a = found[j][2], b = found[j][3], c = found[j][4];
        const float g1 = found[j][0] + 0.5f * (a * y1[j] + b * y2[j]);
        const float g2 = found[j][1] + 0.5f * (b * y1[j] + c * y2[j]);
        const float miss1 = y1[j] - x1 + s * g1, miss2 = y2[j] - x2 + s * g2;
        /* The step moves y by -(I + s D2u)^-1 miss; grad u follows to first order. */
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

/* v with v = grad u(y), y + s v = x, by Newton's method, at the centres x of COARSE * COARSE cells.

   nodes: (pairs, last + 1, last + 1, 8), of `geonet_nodes`.
   times: (moments); s is the time less a half.
   velocity: (2, pairs * moments, COARSE * COARSE).
   It stops, row by row, a step after |y + s grad u(y) - x| fell below `miss`. */
void geonet_velocity(const float *nodes, const float *times, float *velocity, int32_t last,
                     int32_t steps, float miss, int64_t moments, int64_t items) {
    const int64_t own = 8 * (int64_t)(last + 1) * (last + 1);
#pragma omp parallel for schedule(static)
    for (int64_t line = 0; line < items * COARSE; line++) {
        const int64_t item = line / COARSE;
        const float x1 = ((float)(line % COARSE) + 0.5f) / COARSE;
        const float s = times[item % moments] - 0.5f;
        float *v1 = velocity + line * COARSE, *v2 = v1 + items * COARSE * COARSE;
        memset(v1, 0, sizeof(float) * COARSE);
        memset(v2, 0, sizeof(float) * COARSE);
        for (int32_t step = 0; step <= steps; step++)
            if (newton(nodes + own * (item / moments), last, s, x1, v1, v2) < miss) break;
    }
}

/* Cubic B-splines of a batch of densities in a box in the unit square.

   coefficients: (pairs, rows + 4, columns + 4), for rows * columns cells, two more on each side.
   down, across: the sides of the box; one of them is one. Beyond the other there is no mass. */
typedef struct {
    const float *coefficients;
    int32_t rows, columns;
    float down, across;
} Splines;

/* The weights of four coefficients in a row at s in [0, 1] between the middle two. */
INLINE void weigh(float s, float *w0, float *w1, float *w2, float *w3) {
    const float r = 1.0f - s;
    *w0 = r * r * r * (1 / 6.0f);
    *w1 = 2 / 3.0f + s * s * (0.5f * s - 1.0f);
    *w2 = 2 / 3.0f + r * r * (0.5f * r - 1.0f);
    *w3 = s * s * s * (1 / 6.0f);
}

/* The first of the four coefficients for a place in [0, side], and the s of `weigh`. */
INLINE int32_t first_of_four(float place, float side, int32_t cells, float *s) {
    const float scaled = clamped(place / side) * (float)cells + 0.5f;
    int32_t first = (int32_t)scaled;
    first = first < cells ? first : cells;
    *s = scaled - (float)first;
    return first;
}

/* The density of a pair at `count` <= BLOCK places, cut off at zero. */
INLINE void read(const Splines *splines, int64_t pair, const float *y1, const float *y2,
                 int32_t count, float *found) {
    const int32_t row = splines->columns + 4;
    const float *table = splines->coefficients + pair * row * (splines->rows + 4);
    int32_t at[BLOCK];
    float w[4][BLOCK], s2[BLOCK], inside[BLOCK], sums[BLOCK][4];
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        float s1;
        const int32_t i = first_of_four(y1[j], splines->down, splines->rows, &s1);
        at[j] = i * row + first_of_four(y2[j], splines->across, splines->columns, &s2[j]);
        weigh(s1, &w[0][j], &w[1][j], &w[2][j], &w[3][j]);
        inside[j] = clamped(y1[j]) <= FACE * splines->down ? 1.0f : 0.0f;
        inside[j] = clamped(y2[j]) <= FACE * splines->across ? inside[j] : 0.0f;
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
        weigh(s2[j], &w0, &w1, &w2, &w3);
        const float value = (w0 * sums[j][0] + w1 * sums[j][1]) + (w2 * sums[j][2] + w3 * sums[j][3]);
        found[j] = (value < 0.0f ? 0.0f : value) * inside[j]; /* what is no number stays none */
    }
}

/* A block of what `geonet_look` finds. */
static void look_block(const Splines *splines, int64_t pair, const float *x1, const float *x2,
                       const float *v1, const float *v2, float s, int32_t count, float *found) {
    float y1[BLOCK], y2[BLOCK];
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        y1[j] = x1[j] - s * v1[j];
        y2[j] = x2[j] - s * v2[j];
    }
    read(splines, pair, y1, y2, count, found);
}

/* Densities at x - s v for points x, each item with its own v and s.

   x1, x2: (points). v1, v2: (pairs * moments, points). s: (moments).
   found: (pairs * moments, points). */
void geonet_look(const Splines *splines, const float *x1, const float *x2, const float *v1,
                 const float *v2, const float *s, float *found, int64_t points, int64_t moments,
                 int64_t items) {
    const int64_t blocks = (points + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static)
    for (int64_t part = 0; part < items * blocks; part++) {
        const int64_t item = part / blocks, start = part % blocks * BLOCK;
        const int64_t from = item * points + start;
        const int32_t count = (int32_t)(points - start < BLOCK ? points - start : BLOCK);
        look_block(splines, item / moments, x1 + start, x2 + start, v1 + from, v2 + from,
                   s[item % moments], count, found + from);
    }
}

/* A block of what `geonet_halfway` finds; the second derivatives of u are a, b, c. */
static void halfway_block(const Splines *source, const Splines *target, int64_t pair,
                          const float *x1, const float *x2, const float *g1, const float *g2,
                          const float *a, const float *b, const float *c, int32_t count,
                          float *rho0, float *rho1, float *least, float *most) {
    look_block(source, pair, x1, x2, g1, g2, 0.5f, count, rho0);
    look_block(target, pair, x1, x2, g1, g2, -0.5f, count, rho1);
    float smallest = *least, steepest = *most;
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
    *least = smallest;
    *most = steepest;
}

/* rho0 and rho1 at t = 1/2 at points x, and for every pair the smallest determinant of I -+ D2u/2
   and the largest |eigenvalue| of D2u.

   planes: (pairs, 6, points), of `geonet_potential`. rho0, rho1: (pairs, points).
   least, most: (pairs). */
void geonet_halfway(const Splines *source, const Splines *target, const float *x1, const float *x2,
                    const float *planes, float *rho0, float *rho1, float *least, float *most,
                    int64_t points, int64_t pairs) {
#pragma omp parallel for schedule(static)
    for (int64_t pair = 0; pair < pairs; pair++) {
        least[pair] = HUGE_VALF;
        most[pair] = 0.0f;
        for (int64_t start = 0; start < points; start += BLOCK) {
            const int32_t count = (int32_t)(points - start < BLOCK ? points - start : BLOCK);
            const float *g1 = planes + (6 * pair + 1) * points + start, *g2 = g1 + points;
            const float *a = g2 + points, *b = a + points, *c = b + points;
            const int64_t to = pair * points + start;
            halfway_block(source, target, pair, x1 + start, x2 + start, g1, g2, a, b, c, count,
                          rho0 + to, rho1 + to, least + pair, most + pair);
        }
    }
}

/* Matrices that take v from its cells to a grid, see refinement() in matrices.py.

   Along the rows, (rows + 1, COARSE), the last of which is not used: v1, its slope, and v2. Along the
   columns, transposed, (COARSE, padded) with columns padded to whole blocks: v1, its slope, v2, its
   slope. */
typedef struct {
    const float *v1_down, *v1_down_slope, *v2_down;
    const float *across[4];
    int32_t rows, columns, padded;
} Refinement;

/* v and its slopes d11, d12, d22 in a block of two rows, from `half`: across, but not yet down. */
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

/* From cells to a block of columns: v1 and its slope, v2 and its slope. */
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

/* A block of row i of a frame of `geonet_frames` from the velocity and its slopes there. */
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
    read(source, pair, y1, y2, count, rho0);
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        y1[j] = x1 + left * field[0][j];
        y2[j] = x2[j] + left * field[1][j];
    }
    read(target, pair, y1, y2, count, rho1);
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

/* The rows first ... last - 1 of a block of columns of a frame of `geonet_frames`. */
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

   x1, x2: (rows), (columns), where the grid's cells are in the unit square.
   velocity: (2, pairs * moments, COARSE * COARSE), of geonet_velocity. times: (moments).
   answer: double; the frame of an item begins at its entry of `begins`.
   Frames are shared out in `parts` of their rows. */
void geonet_frames(const Splines *source, const Splines *target, const Refinement *to,
                   const float *x1, const float *x2, const float *velocity, const float *times,
                   double *answer, const int64_t *begins, double scale, int32_t parts,
                   int64_t moments, int64_t items) {
    const int64_t blocks = (to->columns + BLOCK - 1) / BLOCK, cells = COARSE * COARSE;
#pragma omp parallel for schedule(static)
    for (int64_t work = 0; work < items * blocks * parts; work++) {
        const int64_t item = work / (blocks * parts), block = work / parts % blocks;
        const int64_t part = work % parts;
        frame_block(source, target, item / moments, to, x1, x2, velocity + item * cells,
                    velocity + (items + item) * cells, times[item % moments], scale,
                    (int32_t)(block * BLOCK), (int32_t)(to->rows * part / parts),
                    (int32_t)(to->rows * (part + 1) / parts), answer + begins[item]);
    }
}

/* What loops.py compares with its own: a library that is older than it must not be called. */
const int32_t geonet_made_for[] = {VERSION, COARSE, BLOCK, sizeof(Splines), sizeof(Refinement)};
