/* The network of neural/unet.py: from three fields to a correction of the potential.

   torch takes a hundred operations for it, each with its own overhead, and multiplies by all
   nine weights of a kernel although only three differ. Here a symmetric 3x3 convolution is a
   matrix product: the inputs at several adjacent cells, the sums of their four neighbours and
   the sums of their four diagonal neighbours, times (3 * inputs, outputs) weights.

   Features are planes, so that vectors run along cells for any number of features. A row has one
   cell more than the grid, which is zero: it is the neighbour after the last cell and before the
   first cell of the next row. A plane is therefore one long row for any grid. Arrays are single
   precision. Threads share the streams: each pair of densities has two, one with source and
   target swapped. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#define VERSION 1 /* increment with every change of the interface to unet.py */
#define MAX_LEVELS 16
#define INPUTS 6 /* planes that `build_inputs` makes of three fields */
#define TAPS 3 /* weights of a kernel: centre, edges, corners */
#define OUTS 4 /* outputs with adjacent weights */

/* Vectors of the width of the registers. The sums of OUTS * BLOCKS outputs in SIDE vectors of
   cells fit in the registers together with their operands. */
#if defined(__AVX512F__)
#define WIDTH 16
#define SIDE 3
#define BLOCKS 2
#elif defined(__AVX2__)
#define WIDTH 8
#define SIDE 3
#define BLOCKS 1
#else
#define WIDTH 4
#define SIDE 2
#define BLOCKS 1
#endif
#define STRIP (SIDE * WIDTH) /* cells in one product */
typedef float Wide __attribute__((vector_size(4 * WIDTH), aligned(4)));

/* The network; see `Layers` of unet.py for the weights, which are in the order of their use. */
typedef struct {
    int32_t levels;
    int32_t width[MAX_LEVELS], down[MAX_LEVELS], up[MAX_LEVELS];
    const float *weights;
} Net;

/* Layout of a level's grid.

   cells: computed part of a plane, rows * stride rounded up to vectors; pitch: from one plane to
   the next. A haloed plane, whose neighbours are read, has `margin` zeros before and after it;
   halo_pitch: from one haloed plane to the next. */
typedef struct {
    int32_t rows, columns, stride;
    int64_t cells, pitch, margin, halo_pitch;
} Grid;

/* All grids, and the layout of a thread's scratch memory: offsets and sizes in floats. */
typedef struct {
    Grid grid[MAX_LEVELS];
    int64_t fields
        [MAX_LEVELS]; /* residual, weight and potential, (3, rows, columns), except on the finest */
    int64_t x[MAX_LEVELS]; /* features, (width, pitch) */
    int64_t haloed; /* input of a convolution, (width, halo_pitch) of any level */
    int64_t
        transfer; /* features of one level on the cells of the next coarser one, (width, pitch) */
    int64_t panel; /* one factor of a product, (depth, STRIP) */
    int64_t scratch; /* size for one thread */
    int64_t heads; /* size for one stream: planes (cells) of all levels */
} Plan;

INLINE int64_t round_up(int64_t n, int64_t of) { return (n + of - 1) / of * of; }
INLINE int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE Wide load(const float *place) { return *(const Wide *)place; }

/* Pitch of planes of a size. Addresses a multiple of 4096 bytes apart compete for the same
   cache set: large planes are five cache lines more than that apart. */
INLINE int64_t spread_pitch(int64_t size) {
    return size < 1024 ? size : round_up(size - 80, 1024) + 80;
}

INLINE Grid make_grid(int32_t rows, int32_t columns) {
    Grid grid = {rows, columns, columns + 1, 0, 0, 0, 0};
    grid.cells = round_up((int64_t)rows * grid.stride, WIDTH);
    grid.pitch = spread_pitch(grid.cells);
    grid.margin = round_up(grid.stride + 1, WIDTH);
    grid.halo_pitch = spread_pitch(grid.cells + 2 * grid.margin);
    return grid;
}

static Plan make_plan(const Net *net, int32_t rows, int32_t columns) {
    Plan plan = {0};
    int64_t haloed = 0, transfer = 0, depth = 0;
    for (int k = 0; k < net->levels; k++) {
        const int64_t width = round_up(net->width[k], OUTS), finer = k ? net->width[k - 1] : 0;
        const Grid grid = plan.grid[k] = make_grid(rows >> k, columns >> k);
        plan.fields[k] = plan.scratch;
        if (k) plan.scratch += round_up(3 * (int64_t)grid.rows * grid.columns, WIDTH);
        plan.x[k] = plan.scratch;
        plan.scratch += width * grid.pitch;
        plan.heads += grid.cells;
        haloed = max64(haloed, max64(width, INPUTS) * grid.halo_pitch);
        transfer = max64(transfer, round_up(finer, OUTS) * grid.pitch);
        depth = max64(depth, max64(TAPS * width, TAPS * INPUTS + finer));
    }
    plan.haloed = plan.scratch;
    plan.transfer = plan.haloed + haloed;
    plan.panel = plan.transfer + transfer;
    plan.scratch = plan.panel + round_up(depth * STRIP, 16); /* a multiple of the cache line */
    return plan;
}

/* ---- matrix products */

/* One layer: weights (outputs / OUTS, depth, OUTS) and bias (outputs), outputs rounded up to
   OUTS. */
typedef struct {
    const float *weights, *bias;
    int32_t depth, outputs;
} Layer;

/* OUTS * blocks outputs of `multiply` for WIDTH * side cells. */
INLINE void multiply_block(const int blocks, const int side, const int accumulate,
                           const Layer *layer, int32_t output, const float *panel, float *out,
                           int64_t pitch) {
    const int64_t block = (int64_t)layer->depth * OUTS;
    const float *weights = layer->weights + output / OUTS * block;
    Wide sum[OUTS * BLOCKS][SIDE];
    out += output * pitch;
    for (int o = 0; o < OUTS * blocks; o++)
        for (int q = 0; q < side; q++) {
            sum[o][q] = (Wide){0} + layer->bias[output + o];
            if (accumulate) sum[o][q] += load(out + o * pitch + q * WIDTH);
        }
    for (int32_t k = 0; k < layer->depth; k++, panel += STRIP, weights += OUTS)
        for (int o = 0; o < OUTS * blocks; o++) {
            const float w = weights[o / OUTS * block + o % OUTS];
            for (int q = 0; q < side; q++) sum[o][q] += w * load(panel + q * WIDTH);
        }
    for (int o = 0; o < OUTS * blocks; o++)
        for (int q = 0; q < side; q++) *(Wide *)(out + o * pitch + q * WIDTH) = sum[o][q];
}

INLINE void multiply_side(const int side, const int accumulate, const Layer *layer,
                          const float *panel, float *out, int64_t pitch) {
    int32_t o = 0;
    for (; o + OUTS * BLOCKS <= layer->outputs; o += OUTS * BLOCKS)
        multiply_block(BLOCKS, side, accumulate, layer, o, panel, out, pitch);
    for (; o < layer->outputs; o += OUTS)
        multiply_block(1, side, accumulate, layer, o, panel, out, pitch);
}

/* out (outputs, pitch) = bias + panel^t weights, plus the previous out if `accumulate`.

   For the `count` vectors of a strip. panel: (depth, STRIP). */
INLINE void multiply(int count, const int accumulate, const Layer *layer, const float *panel,
                     float *out, int64_t pitch) {
    if (count == 1) multiply_side(1, accumulate, layer, panel, out, pitch);
    if (count == 2) multiply_side(2, accumulate, layer, panel, out, pitch);
#if SIDE > 2
    if (count == 3) multiply_side(3, accumulate, layer, panel, out, pitch);
#endif
}

/* Number of vectors in the strip that starts at a cell. */
INLINE int vector_count(int64_t start, int64_t cells) {
    return (int)(cells - start < STRIP ? (cells - start) / WIDTH : SIDE);
}

/* Sums over neighbours, (TAPS, inputs) rows of a panel, at a strip of haloed planes. */
INLINE void gather_taps(const Grid *grid, const float *haloed, int32_t inputs, int count,
                        float *panel) {
    const int64_t s = grid->stride;
    for (int32_t c = 0; c < inputs; c++, haloed += grid->halo_pitch, panel += STRIP)
        for (int q = 0; q < count; q++) {
            const float *x = haloed + q * WIDTH;
            float *to = panel + q * WIDTH;
            *(Wide *)to = load(x);
            *(Wide *)(to + (int64_t)inputs * STRIP) =
                (load(x - 1) + load(x + 1)) + (load(x - s) + load(x + s));
            *(Wide *)(to + 2 * (int64_t)inputs * STRIP) =
                (load(x - s - 1) + load(x - s + 1)) + (load(x + s - 1) + load(x + s + 1));
        }
}

/* ---- features */

INLINE float hardswish(float x) {
    float gate = x + 3.0f;
    gate = gate > 0.0f ? gate : 0.0f;
    gate = gate < 6.0f ? gate : 6.0f;
    return x * gate * (1 / 6.0f);
}

/* Set the cells of a haloed plane outside its grid to zero. */
INLINE void clear_outside(const Grid *grid, float *plane) {
    const int64_t last = (int64_t)grid->rows * grid->stride;
    memset(plane, 0, sizeof(float) * (size_t)grid->margin);
    float *inside = plane + grid->margin;
    for (int64_t end = grid->columns; end < last; end += grid->stride) inside[end] = 0.0f;
    memset(inside + last, 0, sizeof(float) * (size_t)(grid->cells - last + grid->margin));
}

/* x += W hardswish(x) + bias, a convolution. Overwrites haloed and panel. */
static void residual(const Grid *grid, int32_t width, const Layer *layer, float *x, float *haloed,
                     float *panel) {
    for (int32_t c = 0; c < width; c++) {
        const float *from = x + c * grid->pitch;
        float *plane = haloed + c * grid->halo_pitch, *to = plane + grid->margin;
#pragma omp simd
        for (int64_t j = 0; j < grid->cells; j++) to[j] = hardswish(from[j]);
        clear_outside(grid, plane);
    }
    for (int64_t start = 0; start < grid->cells; start += STRIP) {
        const int count = vector_count(start, grid->cells);
        gather_taps(grid, haloed + grid->margin + start, width, count, panel);
        multiply(count, 1, layer, panel, x + start, grid->pitch);
    }
}

/* x = W haloed + V pooled + bias: a convolution of INPUTS haloed planes, and a matrix for the
   `finer` features of the previous level, averaged over the cells of this one. Overwrites
   panel. */
static void encode(const Grid *grid, int32_t finer, const Layer *layer, const float *haloed,
                   const float *pooled, float *x, float *panel) {
    for (int64_t start = 0; start < grid->cells; start += STRIP) {
        const int count = vector_count(start, grid->cells);
        gather_taps(grid, haloed + grid->margin + start, INPUTS, count, panel);
        for (int32_t c = 0; c < finer; c++)
            memcpy(panel + (TAPS * INPUTS + c) * STRIP, pooled + c * grid->pitch + start,
                   sizeof(float) * (size_t)(count * WIDTH));
        multiply(count, 0, layer, panel, x + start, grid->pitch);
    }
}

/* head (cells) = w . hardswish(x), and upward = W hardswish(x) for the next finer level, on
   the cells of this one. Overwrites panel. */
static void decode(const Grid *grid, int32_t width, const float *w, const Layer *layer,
                   const float *x, float *head, float *upward, float *panel) {
    for (int64_t start = 0; start < grid->cells; start += STRIP) {
        const int count = vector_count(start, grid->cells);
        for (int32_t c = 0; c < width; c++) {
            const float *from = x + c * grid->pitch + start;
            float *to = panel + c * STRIP;
#pragma omp simd
            for (int j = 0; j < count * WIDTH; j++) to[j] = hardswish(from[j]);
        }
        for (int q = 0; q < count; q++) {
            Wide sum = {0};
            for (int32_t c = 0; c < width; c++) sum += w[c] * load(panel + c * STRIP + q * WIDTH);
            *(Wide *)(head + start + q * WIDTH) = sum;
        }
        multiply(count, 0, layer, panel, upward + start, grid->pitch);
    }
}

/* ---- between levels */

/* Means over 2x2 cells of two rows, to n cells. */
INLINE void average_2x2(const float *upper, const float *lower, int32_t n, float *to) {
#pragma omp simd
    for (int32_t j = 0; j < n; j++)
        to[j] = 0.25f * ((upper[2 * j] + upper[2 * j + 1]) + (lower[2 * j] + lower[2 * j + 1]));
}

/* Average features over the cells of the next coarser level. */
static void pool(const Grid *fine, const Grid *coarse, int32_t width, const float *x, float *to) {
    for (int32_t c = 0; c < width; c++, x += fine->pitch, to += coarse->pitch) {
        const int64_t last = (int64_t)coarse->rows * coarse->stride;
        for (int32_t i = 0; i < coarse->rows; i++) {
            const float *upper = x + 2 * (int64_t)i * fine->stride;
            float *row = to + (int64_t)i * coarse->stride;
            average_2x2(upper, upper + fine->stride, coarse->columns, row);
            row[coarse->columns] = 0.0f;
        }
        memset(to + last, 0, sizeof(float) * (size_t)(coarse->cells - last));
    }
}

/* Add features of the next coarser level to the four cells within each of its cells. */
static void unpool(const Grid *fine, const Grid *coarse, int32_t width, const float *from,
                   float *x) {
    for (int32_t c = 0; c < width; c++, x += fine->pitch, from += coarse->pitch)
        for (int32_t i = 0; i < fine->rows; i++) {
            const float *row = from + (int64_t)(i / 2) * coarse->stride;
            float *to = x + (int64_t)i * fine->stride;
#pragma omp simd
            for (int32_t j = 0; j < coarse->columns; j++) {
                to[2 * j] += row[j];
                to[2 * j + 1] += row[j];
            }
        }
}

/* ---- the network */

/* The INPUTS haloed planes of a level, from its residual, weight and potential.

   sign: -1 for the inputs after a swap of source and target. The potential is in squared cells
   of the finest level, `shrink` of this one's. */
static void build_inputs(const Grid *grid, const float *const fields[3], float sign, float shrink,
                         float *haloed) {
    for (int32_t i = 0; i < grid->rows; i++) {
        const int64_t from = (int64_t)i * grid->columns;
        const float *r = fields[0] + from, *w = fields[1] + from, *s = fields[2] + from;
        float *to = haloed + grid->margin + (int64_t)i * grid->stride;
        float *to1 = to + grid->halo_pitch, *to2 = to1 + grid->halo_pitch,
              *to3 = to2 + grid->halo_pitch;
        float *to4 = to3 + grid->halo_pitch, *to5 = to4 + grid->halo_pitch;
#pragma omp simd
        for (int32_t j = 0; j < grid->columns; j++) {
            const float odd = sign * r[j], cells = sign * shrink * s[j];
            to[j] = odd / (1.0f + fabsf(odd));
            to1[j] = odd / (w[j] + 0.1f);
            to2[j] = cells / (1.0f + fabsf(cells));
            to3[j] = cells / (8.0f + fabsf(cells));
            to4[j] = w[j] / (w[j] + 0.2f);
            to5[j] = w[j] / (w[j] + 3.0f);
        }
    }
    for (int32_t c = 0; c < INPUTS; c++) clear_outside(grid, haloed + c * grid->halo_pitch);
}

/* Replace fields by their means over the cells of the next coarser level. */
static void coarsen(const Grid *fine, const Grid *coarse, const float *fields[3], float *to) {
    for (int f = 0; f < 3; f++, to += (int64_t)coarse->rows * coarse->columns) {
        for (int32_t i = 0; i < coarse->rows; i++) {
            const float *upper = fields[f] + 2 * (int64_t)i * fine->columns;
            average_2x2(upper, upper + fine->columns, coarse->columns,
                        to + (int64_t)i * coarse->columns);
        }
        fields[f] = to;
    }
}

/* The next layer; advances `place`, the offset in all weights. */
INLINE Layer next_layer(const Net *net, int64_t *place, int32_t depth, int32_t outputs) {
    const int32_t halo_pitch = (int32_t)round_up(outputs, OUTS);
    const float *weights = net->weights + *place, *bias = weights + (int64_t)depth * halo_pitch;
    *place += (int64_t)(depth + 1) * halo_pitch;
    return (Layer){weights, bias, depth, halo_pitch};
}

/* x + W hardswish(x) + bias, several times. */
static void residuals(const Net *net, const Plan *plan, float *scratch, int k, int32_t count,
                      int64_t *place) {
    for (int32_t done = 0; done < count; done++) {
        const Layer layer = next_layer(net, place, TAPS * net->width[k], net->width[k]);
        residual(&plan->grid[k], net->width[k], &layer, scratch + plan->x[k],
                 scratch + plan->haloed, scratch + plan->panel);
    }
}

/* Head of every level for one stream, one plane each, the finest first. Overwrites fields. */
static void run_stream(const Net *net, const Plan *plan, const float *fields[3], float sign,
                       float *scratch, float *heads) {
    int64_t place = 0;
    float *haloed = scratch + plan->haloed, *transfer = scratch + plan->transfer,
          *panel = scratch + plan->panel;
    float *head = heads + plan->heads, shrink = 1.0f;
    for (int k = 0; k < net->levels; k++, shrink *= 0.25f) {
        const int32_t width = net->width[k], finer = k ? net->width[k - 1] : 0;
        const Grid *grid = &plan->grid[k];
        if (k) coarsen(grid - 1, grid, fields, scratch + plan->fields[k]);
        if (k) pool(grid - 1, grid, finer, scratch + plan->x[k - 1], transfer);
        build_inputs(grid, fields, sign, shrink, haloed);
        const Layer layer = next_layer(net, &place, TAPS * INPUTS + finer, width);
        encode(grid, finer, &layer, haloed, transfer, scratch + plan->x[k], panel);
        residuals(net, plan, scratch, k, net->down[k], &place);
    }
    for (int k = net->levels - 1; k >= 0; k--) {
        const int32_t width = net->width[k], finer = k ? net->width[k - 1] : 0;
        const Grid *grid = &plan->grid[k];
        residuals(net, plan, scratch, k, net->up[k], &place);
        const float *w = net->weights + place;
        place += round_up(width, OUTS);
        const Layer layer = next_layer(net, &place, width, finer);
        head -= grid->cells;
        decode(grid, width, w, &layer, scratch + plan->x[k], head, transfer, panel);
        if (k) unpool(grid - 1, grid, finer, transfer, scratch + plan->x[k - 1]);
    }
}

/* Add a spline (rows, stride) of the coarser grid on cells of half the side, in their squared
   units. A row of `to` has length `stride`. */
static void add_prolonged(const Grid *coarse, const float *from, float *to, int64_t stride) {
    const int32_t last = coarse->columns - 1;
    for (int32_t i = 0; i < 2 * coarse->rows; i++, to += stride) {
        int32_t other = i % 2 ? i / 2 + 1 : i / 2 - 1; /* the row with a quarter of the weight */
        other = other < 0 ? 0 : other < coarse->rows ? other : coarse->rows - 1;
        const float *own = from + (int64_t)(i / 2) * coarse->stride;
        const float *next = from + (int64_t)other * coarse->stride;
        to[0] += 3.0f * own[0] + next[0];
        to[2 * last + 1] += 3.0f * own[last] + next[last];
#pragma omp simd
        for (int32_t j = 0; j < last; j++) {
            const float left = 3.0f * own[j] + next[j], right = 3.0f * own[j + 1] + next[j + 1];
            to[2 * j + 1] += 0.75f * left + 0.25f * right;
            to[2 * j + 2] += 0.25f * left + 0.75f * right;
        }
    }
}

/* Odd part of the heads, summed on the finest grid: answer (rows, columns).

   heads: of the stream, then of the swapped one. The first ones are overwritten. */
static void combine_streams(const Net *net, const Plan *plan, float *heads, float *answer) {
    float *plus = heads + plan->heads;
    for (int k = net->levels - 1; k >= 0; k--) {
        const Grid *grid = &plan->grid[k];
        const float *coarser = plus, *minus = (plus -= grid->cells) + plan->heads;
        float *to = k ? plus : answer;
        const int64_t stride = k ? grid->stride : grid->columns;
        for (int64_t i = 0; i < grid->rows; i++)
#pragma omp simd
            for (int32_t j = 0; j < grid->columns; j++)
                to[i * stride + j] = plus[i * grid->stride + j] - minus[i * grid->stride + j];
        if (k + 1 < net->levels) add_prolonged(grid + 1, coarser, to, stride);
    }
}

/* Numbers of floats in the weights, in the heads of a stream and in the scratch memory of a
   thread. */
void geonet_unet_sizes(const Net *net, int32_t rows, int32_t columns, int64_t *sizes) {
    const Plan plan = make_plan(net, rows, columns);
    sizes[0] = 0;
    sizes[1] = plan.heads;
    sizes[2] = plan.scratch;
    for (int k = 0; k < net->levels; k++) {
        const int64_t width = net->width[k], halo_pitch = round_up(width, OUTS);
        const int64_t finer = k ? net->width[k - 1] : 0;
        sizes[0] += (TAPS * INPUTS + finer + 1) * halo_pitch; /* encode */
        sizes[0] += (net->down[k] + net->up[k]) * (TAPS * width + 1) * halo_pitch;
        sizes[0] += halo_pitch + (width + 1) * round_up(finer, OUTS); /* decode */
    }
}

/* residual, weight and potential, (pairs, rows, columns), to coefficients of the same shape:
   answer.

   heads: scratch, (pairs, 2, heads of a stream). scratches: (threads, scratch of a thread). */
void geonet_unet(const Net *net, const float *residual, const float *weight, const float *potential,
                 float *answer, float *heads, float *scratches, int32_t rows, int32_t columns,
                 int64_t pairs, int32_t threads) {
    const Plan plan = make_plan(net, rows, columns);
    const int64_t cells = (int64_t)rows * columns, streams = 2 * pairs;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int part = 0; part < threads; part++)
        for (int64_t i = streams * part / threads; i < streams * (part + 1) / threads; i++) {
            const int64_t from = i / 2 * cells;
            const float *fields[3] = {residual + from, weight + from, potential + from};
            run_stream(net, &plan, fields, i % 2 ? -1.0f : 1.0f, scratches + part * plan.scratch,
                       heads + i * plan.heads);
        }
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && pairs > 1)
    for (int64_t pair = 0; pair < pairs; pair++)
        combine_streams(net, &plan, heads + 2 * pair * plan.heads, answer + pair * cells);
}

/* unet.py compares these numbers with its own, so that it never calls an outdated library. */
const int32_t geonet_unet_abi[] = {VERSION, MAX_LEVELS, INPUTS, OUTS, sizeof(Net)};
