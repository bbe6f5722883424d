/* Quadratic splines on a grid, one coefficient per cell, with even reflection at the faces, or
   wrapped along periodic axes.

   u = sum_i c_i B_i, where B is a product of one quadratic B-spline per axis, three taps wide.
   Integrals are sums over the centres of half-cells, two per axis and cell: a half-cell that is
   only shifted then carries its mass exactly.

   Vectors run along the last axis. The axes before it ("leading") have 3^(d-1) rows of taps and
   2^(d-1) points. Functions that take d are inlined with d a constant. Each thread has a slab of
   the first axis; every number is summed in the same order for any number of threads. */

#ifndef GEONET_QUADRATIC_H
#define GEONET_QUADRATIC_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define BLOCK 32 /* cells of a row in one block */
#define MAX_LEVELS 24
#define MAX_THREADS 64

/* Value, slope and curvature of the three B-splines at the two points of a cell. */
static const double W[3][2][3] = {{{0.28125, 0.6875, 0.03125}, {0.03125, 0.6875, 0.28125}},
                                  {{-0.75, 0.5, 0.25}, {-0.25, -0.5, 0.75}},
                                  {{1, -2, 1}, {1, -2, 1}}};

INLINE int tap_row_count(const int d) { return d == 1 ? 1 : d == 2 ? 3 : 9; }
INLINE int leading_points(const int d) { return d == 1 ? 1 : d == 2 ? 2 : 4; }
INLINE int entries(const int d) { return d * (d + 1) / 2; } /* of a packed symmetric matrix */

/* Matrices A that are stored for each cell: one for each point, in 3D their mean. */
INLINE int weight_points(const int d) { return d == 3 ? 1 : 1 << d; }

/* Weight of leading row k at leading point p, of order a along the first axis and b along the
   second (3D). */
INLINE double leading_weight(const int d, int a, int b, int p, int k) {
    if (d == 1) return 1.0;
    if (d == 2) return W[a][p][k];
    return W[a][p / 2][k / 3] * W[b][p % 2][k % 3];
}

INLINE int32_t clamp_index(int32_t i, int32_t n) { return i < 0 ? 0 : i < n ? i : n - 1; }

/* A grid with up to three axes; missing axes come first, with one cell. */
typedef struct {
    int32_t shape[3];
    int32_t periodic[3]; /* whether each axis is periodic */
    int64_t cells;
} Grid;

/* Index i, from -1 to n, of a cell along an axis: wrapped or, by reflection, clamped. */
INLINE int32_t neighbour_index(const Grid *grid, int axis, int32_t i) {
    const int32_t n = grid->shape[axis];
    if (grid->periodic[axis]) return i < 0 ? i + n : i < n ? i : i - n;
    return clamp_index(i, n);
}

/* The rows of taps around leading cell (i, j), in an array with rows of `stride` numbers. */
INLINE void tap_rows(const int d, const Grid *grid, int32_t i, int32_t j, int64_t stride,
                     int64_t *rows) {
    for (int k = 0; k < tap_row_count(d); k++) {
        const int32_t a = d == 3 ? neighbour_index(grid, 0, i + k / 3 - 1) : 0;
        const int32_t b = d == 1 ? 0 : neighbour_index(grid, 1, j + k % 3 - 1);
        rows[k] = ((int64_t)a * grid->shape[1] + b) * stride;
    }
}

/* Slabs are cut along the first axis of the grid. */
INLINE int slab_axis(const int d) { return d == 3 ? 0 : 1; }

/* Whether a leading row belongs to the slab from ... to of its axis. */
INLINE int in_slab(const int d, const Grid *grid, int64_t row, int32_t from, int32_t to) {
    const int32_t centre = (int32_t)(d == 3 ? row / grid->shape[1] : row);
    return centre >= from && centre < to;
}

/* The last index, from `from` - 1 on, whose splines overlap the slab; each counts once. */
INLINE int32_t last_overlap(const Grid *grid, int axis, int32_t from, int32_t to) {
    const int32_t n = grid->shape[axis];
    return grid->periodic[axis] && to - from + 2 > n ? from - 2 + n : to;
}

/* Index i, from -1 to n, of a cell that exists: wrapped, or -1 beyond a face. */
INLINE int32_t existing_index(const Grid *grid, int axis, int32_t i) {
    if (i >= 0 && i < grid->shape[axis]) return i;
    return grid->periodic[axis] ? neighbour_index(grid, axis, i) : -1;
}

/* First index of the slab of a thread. */
INLINE int32_t slab_begin(int32_t size, int part, int parts) {
    return (int32_t)((int64_t)size * part / parts);
}

/* Centre of half-cell (p, q) of cell (i, line, j) along each axis, in cells. */
INLINE void half_cell_centre(const int d, int32_t i, int32_t line, int32_t j, int p, int q,
                             float *centre) {
    const int p0 = d == 3 ? p / 2 : p, p1 = p % 2;
    if (d == 3) centre[0] = (float)i + 0.25f + 0.5f * (float)p0;
    if (d == 3) centre[1] = (float)line + 0.25f + 0.5f * (float)p1;
    if (d == 2) centre[0] = (float)line + 0.25f + 0.5f * (float)p0;
    centre[d - 1] = (float)j + 0.25f + 0.5f * (float)q;
}

/* The entry (a, a) of a packed matrix. */
INLINE int diagonal_entry(const int d, int a) {
    return d == 3 ? (a == 0 ? 0 : a == 1 ? 3 : 5) : a * d;
}

void geonet_fold_rows(const Grid *grid, int64_t from, int64_t to, float *summed, float *y);
void geonet_pad_rows(const Grid *grid, const double *x, double *padded);

#endif
