/* Quadratic splines on a grid, one coefficient a cell, with even reflection at the faces.

   u = sum_i c_i B_i, where B is a product of one quadratic B-spline an axis, three taps wide. Integrals
   are sums over the centres of half-cells, two an axis and cell: what a half-cell carries is then
   known exactly where it only moves.

   The last axis is the one that vectors run along. The axes before it ("leading") have 3^(d-1) rows
   of taps and 2^(d-1) points. Functions that take d are inlined with d a constant. Threads share out
   slabs of the first axis; every number is summed in the same order however many there are. */

#ifndef GEONET_QUADRATIC
#define GEONET_QUADRATIC

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define BLOCK 32 /* cells of a row that are worked on together */
#define MOST_LEVELS 24
#define MOST_THREADS 64

/* Value, slope and curvature of the three B-splines at the two points of a cell. */
static const double W[3][2][3] = {{{0.28125, 0.6875, 0.03125}, {0.03125, 0.6875, 0.28125}},
                                  {{-0.75, 0.5, 0.25}, {-0.25, -0.5, 0.75}},
                                  {{1, -2, 1}, {1, -2, 1}}};

INLINE int rows_of(const int d) { return d == 1 ? 1 : d == 2 ? 3 : 9; }
INLINE int leading_points(const int d) { return d == 1 ? 1 : d == 2 ? 2 : 4; }
INLINE int entries(const int d) { return d * (d + 1) / 2; } /* of a symmetric matrix */

/* The weight of leading row k at leading Gauss point p, of order a along the first axis and b along
   the second (3D). */
INLINE double lead(const int d, int a, int b, int p, int k) {
    if (d == 1) return 1.0;
    if (d == 2) return W[a][p][k];
    return W[a][p / 2][k / 3] * W[b][p % 2][k % 3];
}

INLINE int32_t clamped(int32_t i, int32_t n) { return i < 0 ? 0 : i < n ? i : n - 1; }

/* A grid with up to three axes; those that are missing come first, with one cell. */
typedef struct {
    int32_t shape[3];
    int64_t cells;
} Grid;

/* The rows of taps around leading cell (i, j), of an array with rows of `stride` numbers. */
INLINE void tap_rows(const int d, const Grid *grid, int32_t i, int32_t j, int64_t stride,
                     int64_t *rows) {
    for (int k = 0; k < rows_of(d); k++) {
        const int32_t a = d == 3 ? clamped(i + k / 3 - 1, grid->shape[0]) : 0;
        const int32_t b = d == 1 ? 0 : clamped(j + k % 3 - 1, grid->shape[1]);
        rows[k] = ((int64_t)a * grid->shape[1] + b) * stride;
    }
}

/* Slabs are shared out along the first axis that there is. */
INLINE int slab_axis(const int d) { return d == 3 ? 0 : 1; }

/* Whether a leading row belongs to the slab from ... to of its axis. */
INLINE int in_slab(const int d, const Grid *grid, int64_t row, int32_t from, int32_t to) {
    const int32_t place = (int32_t)(d == 3 ? row / grid->shape[1] : row);
    return place >= from && place < to;
}

/* Where the slab of a thread begins, along its axis. */
INLINE int32_t slab_begin(int32_t size, int part, int parts) {
    return (int32_t)((int64_t)size * part / parts);
}

/* Place of point (p, q) of cell (i, line, j) along each axis, in cells. */
INLINE void place_of(const int d, int32_t i, int32_t line, int32_t j, int p, int q, float *place) {
    const int p0 = d == 3 ? p / 2 : p, p1 = p % 2;
    if (d == 3) place[0] = (float)i + 0.25f + 0.5f * (float)p0;
    if (d == 3) place[1] = (float)line + 0.25f + 0.5f * (float)p1;
    if (d == 2) place[0] = (float)line + 0.25f + 0.5f * (float)p0;
    place[d - 1] = (float)j + 0.25f + 0.5f * (float)q;
}

/* The entry (a, a) of a packed matrix. */
INLINE int diagonal_entry(const int d, int a) { return d == 3 ? (a == 0 ? 0 : a == 1 ? 3 : 5) : a * d; }

void geonet_fold(int32_t n, int64_t from, int64_t to, float *summed, float *y);
void geonet_pad_double(const Grid *grid, const double *x, double *padded);

#endif
