/* c-transforms with the squared distance, and push-forward of cell masses.

   c_transform.py has the same in torch and NumPy, documents the functions and checks their
   arguments. Compiled without -ffast-math, because values may be infinite. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#define COLUMNS 8 /* processed together if a row is not contiguous: they fill a cache line */
/* Stretch in output cells, beyond a whole number, from which a cell gets another sample. Not
   a half: minima over a lattice often stretch cells by exactly 1.5, and rounding would
   decide. */
#define NEXT_SAMPLE 0.53
#define INLINE static inline __attribute__((always_inline))

int32_t geonet_c_transform_version = 3;

/* ---- min_j f_j + a(p − j)² at positions p = first + i·step, all in units of the spacing of
   j */

typedef struct {
    int64_t from, to; /* numbers of values and of positions */
    double first, step, weight;
} Axis;

/* Lower envelope of the parabolas: the active ones from left to right, and the start of each. */
static int64_t envelope(const double *f, int64_t n, double weight, int64_t *active,
                        double *starts) {
    int64_t last = -1;
    const double half = 0.5 / weight;
    for (int64_t j = 0; j < n; j++) {
        if (!(f[j] < INFINITY)) continue;
        double crossing = -INFINITY;
        for (; last >= 0; last--) {
            const int64_t i = active[last];
            crossing = half * (f[j] - f[i]) / (double)(j - i) + 0.5 * (double)(i + j);
            if (crossing > starts[last]) break;
        }
        last++;
        active[last] = j;
        starts[last] = last ? crossing : -INFINITY;
    }
    return last + 1;
}

/* One row; `index` gets the minimising j, −1 if there is none, unless it is null. */
static void transform_row(const double *f, const Axis *axis, int64_t *active, double *starts,
                          double *answer, int64_t *index) {
    const int64_t count = envelope(f, axis->from, axis->weight, active, starts);
    int64_t k = 0;
    for (int64_t i = 0; i < axis->to; i++) {
        const double position = axis->first + (double)i * axis->step;
        while (k + 1 < count && starts[k + 1] < position) k++;
        const int64_t j = count ? active[k] : -1;
        const double apart = position - (double)j;
        answer[i] = count ? f[j] + axis->weight * apart * apart : INFINITY;
        if (index) index[i] = j;
    }
}

/* The columns c … c + COLUMNS of one block (from, inner) of values. */
static void transform_columns(const double *values, double *answer, int64_t *index, int64_t inner,
                              int64_t c, const Axis *axis, double *reals, int64_t *indices) {
    const int64_t from = axis->from, to = axis->to;
    const int64_t wide = inner - c < COLUMNS ? inner - c : COLUMNS;
    double *starts = reals, *in = starts + from, *out = in + COLUMNS * from;
    int64_t *active = indices, *minimisers = active + from;
    for (int64_t j = 0; j < from; j++)
        for (int64_t b = 0; b < wide; b++) in[b * from + j] = values[j * inner + c + b];
    for (int64_t b = 0; b < wide; b++)
        transform_row(in + b * from, axis, active, starts, out + b * to,
                      index ? minimisers + b * to : NULL);
    for (int64_t i = 0; i < to; i++)
        for (int64_t b = 0; b < wide; b++) {
            answer[i * inner + c + b] = out[b * to + i];
            if (index) index[i * inner + c + b] = minimisers[b * to + i];
        }
}

/* Along the middle axis of values (outer, from, inner): minima, and minimisers, (outer, to,
   inner). Returns 1 if memory runs out. */
int32_t geonet_c_transform(const double *values, double *answer, int64_t *index, int64_t outer,
                           int64_t inner, int64_t from, int64_t to, double first, double step,
                           double weight, int32_t threads) {
    const Axis axis = {from, to, first, step, weight};
    const int64_t blocks = (inner + COLUMNS - 1) / COLUMNS, all = outer * blocks;
    int32_t failed = 0;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int32_t part = 0; part < threads; part++) {
        double *reals = malloc(sizeof(double) * (size_t)(COLUMNS * (from + to) + from));
        int64_t *indices = malloc(sizeof(int64_t) * (size_t)(COLUMNS * to + from));
        if (!reals || !indices)
#pragma omp atomic write
            failed = 1;
        else
            for (int64_t k = all * part / threads; k < all * (part + 1) / threads; k++) {
                const int64_t o = k / blocks, c = k % blocks * COLUMNS;
                transform_columns(values + o * from * inner, answer + o * to * inner,
                                  index ? index + o * to * inner : NULL, inner, c, &axis, reals,
                                  indices);
            }
        free(reals), free(indices);
    }
    return failed;
}

/* ---- mass of cells, pushed by a map that is multilinear in each cell */

/* Distribute the mass of a sample to the 2^d cell centres around it; beyond the outermost
   ones to these. */
INLINE void deposit(const int d, const double *position, double mass, const int64_t *cells,
                    double *total) {
    int64_t low[3], next[3];
    double share[3];
    for (int a = 0; a < d; a++) {
        const double most = (double)(cells[a] - 1);
        const double p = position[a] < 0 ? 0 : position[a] > most ? most : position[a];
        low[a] = (int64_t)p;
        next[a] = low[a] + 1 < cells[a] ? low[a] + 1 : low[a];
        share[a] = p - (double)low[a];
    }
    for (int corner = 0; corner < 1 << d; corner++) {
        double weight = mass;
        int64_t index = 0;
        for (int a = 0; a < d; a++) {
            const int up = corner >> a & 1;
            weight *= up ? share[a] : 1 - share[a];
            index = index * cells[a] + (up ? next[a] : low[a]);
        }
        total[index] += weight;
    }
}

/* Number of samples of a cell along each axis: the number of output cells over which it is
   stretched. */
INLINE int64_t count_samples(const int d, double at[8][3], int64_t *count) {
    int64_t all = 1;
    for (int a = 0; a < d; a++) {
        double stretch = 0;
        for (int corner = 0; corner < 1 << d; corner++)
            if (!(corner >> a & 1))
                for (int b = 0; b < d; b++)
                    stretch = fmax(stretch, fabs(at[corner | 1 << a][b] - at[corner][b]));
        count[a] = stretch < 1 + NEXT_SAMPLE ? 1 : (int64_t)(stretch + (1 - NEXT_SAMPLE));
        all *= count[a];
    }
    return all;
}

/* Position of sample s of a cell, interpolated between the cell's corners. */
INLINE void sample_position(const int d, double at[8][3], const int64_t *count, int64_t s,
                            double *position) {
    double along[3];
    for (int a = d - 1; a >= 0; a--) {
        along[a] = ((double)(s % count[a]) + 0.5) / (double)count[a];
        s /= count[a];
    }
    for (int b = 0; b < d; b++) position[b] = 0;
    for (int corner = 0; corner < 1 << d; corner++) {
        double weight = 1;
        for (int a = 0; a < d; a++) weight *= corner >> a & 1 ? along[a] : 1 - along[a];
        for (int b = 0; b < d; b++) position[b] += weight * at[corner][b];
    }
}

INLINE void push_cells(const int d, const double *mass, const double *corners, const int64_t *shape,
                       double *total, const int64_t *cells) {
    int64_t size = 1, nodes = 1, steps[3], count[3], index[3] = {0, 0, 0};
    for (int a = d - 1; a >= 0; a--) {
        steps[a] = nodes;
        size *= shape[a];
        nodes *= shape[a] + 1;
    }
    for (int64_t cell = 0; cell < size; cell++) {
        if (mass[cell] != 0) {
            double at[8][3], position[3];
            for (int corner = 0; corner < 1 << d; corner++) {
                int64_t node = 0;
                for (int a = 0; a < d; a++) node += (index[a] + (corner >> a & 1)) * steps[a];
                for (int b = 0; b < d; b++) at[corner][b] = corners[b * nodes + node];
            }
            const int64_t all = count_samples(d, at, count);
            for (int64_t s = 0; s < all; s++) {
                sample_position(d, at, count, s, position);
                deposit(d, position, mass[cell] / (double)all, cells, total);
            }
        }
        for (int a = d - 1; a >= 0 && ++index[a] == shape[a]; a--)
            if (a) index[a] = 0;
    }
}

/* Add the mass of cells (*shape) to the output (*cells). `corners` (d, *(shape + 1)) are the
   images of the corners of the cells, in units of output cells whose centres are whole
   numbers. */
void geonet_push_cells(const double *mass, const double *corners, const int64_t *shape,
                       double *total, const int64_t *cells, int32_t d) {
    if (d == 1)
        push_cells(1, mass, corners, shape, total, cells);
    else if (d == 2)
        push_cells(2, mass, corners, shape, total, cells);
    else if (d == 3)
        push_cells(3, mass, corners, shape, total, cells);
}
