/* Loops of the back-and-forth method: transforms by the squared distance, and mass that is pushed.

   transforms.py has the same in torch and NumPy, checks what is handed over, and says what it means.
   Compiled without -ffast-math, for there may be infinite values, and without threads. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#define COLUMNS 8 /* taken at a time, where a row is not contiguous: as many as fill a cache line */
/* From this share of an output cell on a cell gets another sample. It is no half: with minima over a
   lattice stretches of 1.5 are common, and rounding would decide. */
#define MORE 0.53
#define INLINE static inline __attribute__((always_inline))

int32_t geonet_transforms_version = 1;

/* ---- min_j f_j + a(p − j)² at places p = first + i·step, all in units of the spacing of j */

typedef struct {
    int64_t from, to; /* how many values a row has, and how many places are asked for */
    double first, step, weight;
} Axis;

/* Which parabolas are lowest somewhere, from left to right, and where each begins to be. */
static int64_t envelope(const double *f, int64_t n, double weight, int64_t *lowest, double *begins)
{
    int64_t last = -1;
    const double half = 0.5 / weight;
    for (int64_t j = 0; j < n; j++) {
        if (!(f[j] < INFINITY))
            continue;
        double crossing = -INFINITY;
        for (; last >= 0; last--) {
            const int64_t i = lowest[last];
            crossing = half * (f[j] - f[i]) / (double)(j - i) + 0.5 * (double)(i + j);
            if (crossing > begins[last])
                break;
        }
        last++;
        lowest[last] = j;
        begins[last] = last ? crossing : -INFINITY;
    }
    return last + 1;
}

/* One row; `where` takes the minimising j, −1 where there is none, unless it is null. */
static void row(const double *f, const Axis *axis, int64_t *lowest, double *begins, double *answer,
                int64_t *where)
{
    const int64_t count = envelope(f, axis->from, axis->weight, lowest, begins);
    int64_t k = 0;
    for (int64_t i = 0; i < axis->to; i++) {
        const double place = axis->first + (double)i * axis->step;
        while (k + 1 < count && begins[k + 1] < place)
            k++;
        const int64_t j = count ? lowest[k] : -1;
        const double apart = place - (double)j;
        answer[i] = count ? f[j] + axis->weight * apart * apart : INFINITY;
        if (where)
            where[i] = j;
    }
}

/* Along the middle axis of values (outer, from, inner): answers, and minimisers, (outer, to, inner).
   Returns 1 where there is no memory. */
int32_t geonet_transform(const double *values, double *answer, int64_t *where, int64_t outer,
                         int64_t inner, int64_t from, int64_t to, double first, double step,
                         double weight)
{
    const Axis axis = {from, to, first, step, weight};
    double *reals = malloc(sizeof(double) * (size_t)(COLUMNS * (from + to) + from));
    int64_t *wholes = malloc(sizeof(int64_t) * (size_t)(COLUMNS * to + from));
    if (!reals || !wholes) {
        free(reals), free(wholes);
        return 1;
    }
    double *begins = reals, *in = begins + from, *out = in + COLUMNS * from;
    int64_t *lowest = wholes, *found = lowest + from;
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t c = 0; c < inner; c += COLUMNS) {
            const int64_t wide = inner - c < COLUMNS ? inner - c : COLUMNS;
            for (int64_t j = 0; j < from; j++)
                for (int64_t b = 0; b < wide; b++)
                    in[b * from + j] = values[(o * from + j) * inner + c + b];
            for (int64_t b = 0; b < wide; b++)
                row(in + b * from, &axis, lowest, begins, out + b * to,
                    where ? found + b * to : NULL);
            for (int64_t i = 0; i < to; i++)
                for (int64_t b = 0; b < wide; b++) {
                    answer[(o * to + i) * inner + c + b] = out[b * to + i];
                    if (where)
                        where[(o * to + i) * inner + c + b] = found[b * to + i];
                }
        }
    }
    free(reals), free(wholes);
    return 0;
}

/* ---- mass of cells, pushed by a map that is multilinear in each cell */

/* Shares a sample's mass out among the 2^d cell centres around it; beyond the last ones it stays. */
INLINE void splat(const int d, const double *place, double mass, const int64_t *cells, double *total)
{
    int64_t low[3], next[3];
    double share[3];
    for (int a = 0; a < d; a++) {
        const double most = (double)(cells[a] - 1);
        const double p = place[a] < 0 ? 0 : place[a] > most ? most : place[a];
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

/* How many samples a cell needs along each axis: as many as output cells it is stretched over. */
INLINE int64_t samples(const int d, double at[8][3], int64_t *count)
{
    int64_t all = 1;
    for (int a = 0; a < d; a++) {
        double stretch = 0;
        for (int corner = 0; corner < 1 << d; corner++)
            if (!(corner >> a & 1))
                for (int b = 0; b < d; b++)
                    stretch = fmax(stretch, fabs(at[corner | 1 << a][b] - at[corner][b]));
        count[a] = stretch < 1 + MORE ? 1 : (int64_t)(stretch + (1 - MORE));
        all *= count[a];
    }
    return all;
}

/* The place of sample s of a cell: between the cell's corners. */
INLINE void sample(const int d, double at[8][3], const int64_t *count, int64_t s, double *place)
{
    double along[3];
    for (int a = d - 1; a >= 0; a--) {
        along[a] = ((double)(s % count[a]) + 0.5) / (double)count[a];
        s /= count[a];
    }
    for (int b = 0; b < d; b++)
        place[b] = 0;
    for (int corner = 0; corner < 1 << d; corner++) {
        double weight = 1;
        for (int a = 0; a < d; a++)
            weight *= corner >> a & 1 ? along[a] : 1 - along[a];
        for (int b = 0; b < d; b++)
            place[b] += weight * at[corner][b];
    }
}

INLINE void push(const int d, const double *mass, const double *corners, const int64_t *shape,
                 double *total, const int64_t *cells)
{
    int64_t size = 1, nodes = 1, steps[3], count[3], index[3] = {0, 0, 0};
    for (int a = d - 1; a >= 0; a--) {
        steps[a] = nodes;
        size *= shape[a];
        nodes *= shape[a] + 1;
    }
    for (int64_t cell = 0; cell < size; cell++) {
        if (mass[cell] != 0) {
            double at[8][3], place[3];
            for (int corner = 0; corner < 1 << d; corner++) {
                int64_t node = 0;
                for (int a = 0; a < d; a++)
                    node += (index[a] + (corner >> a & 1)) * steps[a];
                for (int b = 0; b < d; b++)
                    at[corner][b] = corners[b * nodes + node];
            }
            const int64_t all = samples(d, at, count);
            for (int64_t s = 0; s < all; s++) {
                sample(d, at, count, s, place);
                splat(d, place, mass[cell] / (double)all, cells, total);
            }
        }
        for (int a = d - 1; a >= 0 && ++index[a] == shape[a]; a--)
            if (a)
                index[a] = 0;
    }
}

/* Adds the mass of cells (*shape) to the output's (*cells). `corners` (d, *(shape + 1)) has where the
   corners of the cells go, in units of output cells whose centres are whole numbers. */
void geonet_push(const double *mass, const double *corners, const int64_t *shape, double *total,
                 const int64_t *cells, int32_t d)
{
    if (d == 1)
        push(1, mass, corners, shape, total, cells);
    else if (d == 2)
        push(2, mass, corners, shape, total, cells);
    else if (d == 3)
        push(3, mass, corners, shape, total, cells);
}
