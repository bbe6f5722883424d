/* The network of operators/symmetric_unet.py, from three fields to a correction of the potential.

   torch takes a hundred operations for it, each with its own overhead, and multiplies with all nine
   weights of a kernel where three are different. Here a symmetric 3x3 convolution is a product of
   matrices: for some cells side by side the inputs, the sums of their four neighbours and the sums of
   their four diagonal ones, times (3 * inputs, outputs) weights.

   Features are planes, so that vectors run along cells and any number of features fits. A row has one
   cell more than the grid, which is zero for neighbours: the one before the first of a row is the last
   of the row before. So a plane is one long row, whatever its grid. Arrays are single precision.
   Threads share out streams: each pair of densities is two of them, as it is and with its ends
   swapped. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#define VERSION 1 /* one more whenever something here changes for unet.py */
#define MOST_LEVELS 16
#define INPUTS 6 /* what `show` makes of three fields */
#define TAPS 3 /* weights of a kernel: its centre, its edges, its corners */
#define OUTS 4 /* outputs whose weights stand side by side */

/* Vectors as wide as the processor's registers. The sums of OUTS * BLOCKS outputs in SIDE vectors of
   cells, and what is added to them, fit in its registers. */
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
#define STRIP (SIDE * WIDTH) /* cells that are worked on together */
typedef float Wide __attribute__((vector_size(4 * WIDTH), aligned(4)));

/* The network; see `Layers` of unet.py for its weights, which stand in the order of their use. */
typedef struct {
    int32_t levels;
    int32_t width[MOST_LEVELS], down[MOST_LEVELS], up[MOST_LEVELS];
    const float *weights;
} Net;

/* Where things are on a level's grid.

   cells: what is computed of a plane, rows * stride in whole vectors; pitch: from one plane to the
   next. A plane that neighbours are read from has zeros before and after it: `margin` of them each;
   held: from one such plane to the next. */
typedef struct {
    int32_t rows, columns, stride;
    int64_t cells, pitch, margin, held;
} Grid;

/* All grids, and where things are in a thread's room: places and sizes are counted in floats. */
typedef struct {
    Grid grid[MOST_LEVELS];
    int64_t fields[MOST_LEVELS]; /* residual, weight and solved, (3, rows, columns), but the finest */
    int64_t x[MOST_LEVELS]; /* features, (width, pitch) */
    int64_t near; /* what a convolution reads, (width, held) of any level */
    int64_t between; /* features of one level on the cells of the next coarser one, (width, pitch) */
    int64_t panel; /* one factor of a product, (depth, STRIP) */
    int64_t room; /* of a thread */
    int64_t heads; /* of a stream: planes (cells) of all levels */
} Plan;

INLINE int64_t whole(int64_t n, int64_t of) { return (n + of - 1) / of * of; }
INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE Wide at(const float *place) { return *(const Wide *)place; }

/* The pitch of planes of a size. What is a multiple of 4096 bytes apart has one place in the cache:
   large planes are five of its lines more than that apart. */
INLINE int64_t spaced(int64_t size) { return size < 1024 ? size : whole(size - 80, 1024) + 80; }

INLINE Grid grid_of(int32_t rows, int32_t columns) {
    Grid grid = {rows, columns, columns + 1, 0, 0, 0, 0};
    grid.cells = whole((int64_t)rows * grid.stride, WIDTH);
    grid.pitch = spaced(grid.cells);
    grid.margin = whole(grid.stride + 1, WIDTH);
    grid.held = spaced(grid.cells + 2 * grid.margin);
    return grid;
}

static Plan plan_of(const Net *net, int32_t rows, int32_t columns) {
    Plan plan = {0};
    int64_t near = 0, between = 0, depth = 0;
    for (int k = 0; k < net->levels; k++) {
        const int64_t width = whole(net->width[k], OUTS), finer = k ? net->width[k - 1] : 0;
        const Grid grid = plan.grid[k] = grid_of(rows >> k, columns >> k);
        plan.fields[k] = plan.room;
        if (k) plan.room += whole(3 * (int64_t)grid.rows * grid.columns, WIDTH);
        plan.x[k] = plan.room;
        plan.room += width * grid.pitch;
        plan.heads += grid.cells;
        near = larger(near, larger(width, INPUTS) * grid.held);
        between = larger(between, whole(finer, OUTS) * grid.pitch);
        depth = larger(depth, larger(TAPS * width, TAPS * INPUTS + finer));
    }
    plan.near = plan.room;
    plan.between = plan.near + near;
    plan.panel = plan.between + between;
    plan.room = plan.panel + whole(depth * STRIP, 16); /* which begins with a line of the cache */
    return plan;
}

/* ---- products of matrices */

/* One layer: its weights (outputs / OUTS, depth, OUTS) and its bias (outputs), outputs in whole OUTS. */
typedef struct {
    const float *weights, *bias;
    int32_t depth, outputs;
} Layer;

/* OUTS * blocks outputs of `multiply` for WIDTH * side cells. */
INLINE void multiply_block(const int blocks, const int side, const int more, const Layer *layer,
                           int32_t output, const float *panel, float *out, int64_t pitch) {
    const int64_t block = (int64_t)layer->depth * OUTS;
    const float *weights = layer->weights + output / OUTS * block;
    Wide sum[OUTS * BLOCKS][SIDE];
    out += output * pitch;
    for (int o = 0; o < OUTS * blocks; o++)
        for (int q = 0; q < side; q++) {
            sum[o][q] = (Wide){0} + layer->bias[output + o];
            if (more) sum[o][q] += at(out + o * pitch + q * WIDTH);
        }
    for (int32_t k = 0; k < layer->depth; k++, panel += STRIP, weights += OUTS)
        for (int o = 0; o < OUTS * blocks; o++) {
            const float w = weights[o / OUTS * block + o % OUTS];
            for (int q = 0; q < side; q++) sum[o][q] += w * at(panel + q * WIDTH);
        }
    for (int o = 0; o < OUTS * blocks; o++)
        for (int q = 0; q < side; q++) *(Wide *)(out + o * pitch + q * WIDTH) = sum[o][q];
}

INLINE void multiply_side(const int side, const int more, const Layer *layer, const float *panel,
                          float *out, int64_t pitch) {
    int32_t o = 0;
    for (; o + OUTS * BLOCKS <= layer->outputs; o += OUTS * BLOCKS)
        multiply_block(BLOCKS, side, more, layer, o, panel, out, pitch);
    for (; o < layer->outputs; o += OUTS) multiply_block(1, side, more, layer, o, panel, out, pitch);
}

/* out (outputs, pitch) = bias + panel^t weights, and what was in out before if `more`.

   For the `count` vectors of a strip. panel: (depth, STRIP). */
INLINE void multiply(int count, const int more, const Layer *layer, const float *panel, float *out,
                     int64_t pitch) {
    if (count == 1) multiply_side(1, more, layer, panel, out, pitch);
    if (count == 2) multiply_side(2, more, layer, panel, out, pitch);
#if SIDE > 2
    if (count == 3) multiply_side(3, more, layer, panel, out, pitch);
#endif
}

/* The vectors in the strip that starts at a cell. */
INLINE int vectors_at(int64_t start, int64_t cells) {
    return (int)(cells - start < STRIP ? (cells - start) / WIDTH : SIDE);
}

/* Sums over neighbours, (TAPS, inputs) rows of a panel, at a strip of planes with margins. */
INLINE void put_taps(const Grid *grid, const float *near, int32_t inputs, int count, float *panel) {
    const int64_t s = grid->stride;
    for (int32_t c = 0; c < inputs; c++, near += grid->held, panel += STRIP)
        for (int q = 0; q < count; q++) {
            const float *x = near + q * WIDTH;
            float *to = panel + q * WIDTH;
            *(Wide *)to = at(x);
            *(Wide *)(to + (int64_t)inputs * STRIP) = (at(x - 1) + at(x + 1)) + (at(x - s) + at(x + s));
            *(Wide *)(to + 2 * (int64_t)inputs * STRIP) =
                (at(x - s - 1) + at(x - s + 1)) + (at(x + s - 1) + at(x + s + 1));
        }
}

/* ---- features */

INLINE float hardswish(float x) {
    float way = x + 3.0f;
    way = way > 0.0f ? way : 0.0f;
    way = way < 6.0f ? way : 6.0f;
    return x * way * (1 / 6.0f);
}

/* Zeros where a plane with margins has no cells. */
INLINE void clear_outside(const Grid *grid, float *plane) {
    const int64_t last = (int64_t)grid->rows * grid->stride;
    memset(plane, 0, sizeof(float) * (size_t)grid->margin);
    float *inside = plane + grid->margin;
    for (int64_t end = grid->columns; end < last; end += grid->stride) inside[end] = 0.0f;
    memset(inside + last, 0, sizeof(float) * (size_t)(grid->cells - last + grid->margin));
}

/* x += W hardswish(x) + bias, a convolution. near and panel are used. */
static void residual(const Grid *grid, int32_t width, const Layer *layer, float *x, float *near,
                     float *panel) {
    for (int32_t c = 0; c < width; c++) {
        const float *from = x + c * grid->pitch;
        float *plane = near + c * grid->held, *to = plane + grid->margin;
#pragma omp simd
        for (int64_t j = 0; j < grid->cells; j++) to[j] = hardswish(from[j]);
        clear_outside(grid, plane);
    }
    for (int64_t start = 0; start < grid->cells; start += STRIP) {
        const int count = vectors_at(start, grid->cells);
        put_taps(grid, near + grid->margin + start, width, count, panel);
        multiply(count, 1, layer, panel, x + start, grid->pitch);
    }
}

/* x = W near + V pooled + bias: a convolution of INPUTS planes with margins, and a matrix for the
   `finer` features of the level before, which are means over this one's cells. panel is used. */
static void enter(const Grid *grid, int32_t finer, const Layer *layer, const float *near,
                  const float *pooled, float *x, float *panel) {
    for (int64_t start = 0; start < grid->cells; start += STRIP) {
        const int count = vectors_at(start, grid->cells);
        put_taps(grid, near + grid->margin + start, INPUTS, count, panel);
        for (int32_t c = 0; c < finer; c++)
            memcpy(panel + (TAPS * INPUTS + c) * STRIP, pooled + c * grid->pitch + start,
                   sizeof(float) * (size_t)(count * WIDTH));
        multiply(count, 0, layer, panel, x + start, grid->pitch);
    }
}

/* head (cells) = w . hardswish(x), and risen = W hardswish(x), which is for the next finer level but
   on the cells of this one. panel is used. */
static void leave(const Grid *grid, int32_t width, const float *w, const Layer *layer,
                  const float *x, float *head, float *risen, float *panel) {
    for (int64_t start = 0; start < grid->cells; start += STRIP) {
        const int count = vectors_at(start, grid->cells);
        for (int32_t c = 0; c < width; c++) {
            const float *from = x + c * grid->pitch + start;
            float *to = panel + c * STRIP;
#pragma omp simd
            for (int j = 0; j < count * WIDTH; j++) to[j] = hardswish(from[j]);
        }
        for (int q = 0; q < count; q++) {
            Wide sum = {0};
            for (int32_t c = 0; c < width; c++) sum += w[c] * at(panel + c * STRIP + q * WIDTH);
            *(Wide *)(head + start + q * WIDTH) = sum;
        }
        multiply(count, 0, layer, panel, risen + start, grid->pitch);
    }
}

/* ---- between levels */

/* Means over 2x2 cells of two rows, to n cells. */
INLINE void halve(const float *upper, const float *lower, int32_t n, float *to) {
#pragma omp simd
    for (int32_t j = 0; j < n; j++)
        to[j] = 0.25f * ((upper[2 * j] + upper[2 * j + 1]) + (lower[2 * j] + lower[2 * j + 1]));
}

/* Features as means over the cells of the next coarser level. */
static void pool(const Grid *fine, const Grid *coarse, int32_t width, const float *x, float *to) {
    for (int32_t c = 0; c < width; c++, x += fine->pitch, to += coarse->pitch) {
        const int64_t last = (int64_t)coarse->rows * coarse->stride;
        for (int32_t i = 0; i < coarse->rows; i++) {
            const float *upper = x + 2 * (int64_t)i * fine->stride;
            float *row = to + (int64_t)i * coarse->stride;
            halve(upper, upper + fine->stride, coarse->columns, row);
            row[coarse->columns] = 0.0f;
        }
        memset(to + last, 0, sizeof(float) * (size_t)(coarse->cells - last));
    }
}

/* Add features of the next coarser level to all four cells within one of its. */
static void spread(const Grid *fine, const Grid *coarse, int32_t width, const float *from, float *x) {
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

/* The INPUTS planes with margins that a level is shown of its residual, weight and solved.

   sign: -1 for what it would be shown after a swap of the ends. solved is in squared cells of the
   finest level, `shrink` of this one's. */
static void show(const Grid *grid, const float *const fields[3], float sign, float shrink,
                 float *near) {
    for (int32_t i = 0; i < grid->rows; i++) {
        const int64_t from = (int64_t)i * grid->columns;
        const float *r = fields[0] + from, *w = fields[1] + from, *s = fields[2] + from;
        float *to = near + grid->margin + (int64_t)i * grid->stride;
        float *to1 = to + grid->held, *to2 = to1 + grid->held, *to3 = to2 + grid->held;
        float *to4 = to3 + grid->held, *to5 = to4 + grid->held;
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
    for (int32_t c = 0; c < INPUTS; c++) clear_outside(grid, near + c * grid->held);
}

/* Fields as means over the cells of the next coarser level, which replace them. */
static void coarsen(const Grid *fine, const Grid *coarse, const float *fields[3], float *to) {
    for (int f = 0; f < 3; f++, to += (int64_t)coarse->rows * coarse->columns) {
        for (int32_t i = 0; i < coarse->rows; i++) {
            const float *upper = fields[f] + 2 * (int64_t)i * fine->columns;
            halve(upper, upper + fine->columns, coarse->columns, to + (int64_t)i * coarse->columns);
        }
        fields[f] = to;
    }
}

/* The next layer; `place`, in all weights, moves behind it. */
INLINE Layer next_layer(const Net *net, int64_t *place, int32_t depth, int32_t outputs) {
    const int32_t held = (int32_t)whole(outputs, OUTS);
    const float *weights = net->weights + *place, *bias = weights + (int64_t)depth * held;
    *place += (int64_t)(depth + 1) * held;
    return (Layer){weights, bias, depth, held};
}

/* x + W hardswish(x) + bias, several times. */
static void residuals(const Net *net, const Plan *plan, float *room, int k, int32_t count,
                      int64_t *place) {
    for (int32_t done = 0; done < count; done++) {
        const Layer layer = next_layer(net, place, TAPS * net->width[k], net->width[k]);
        residual(&plan->grid[k], net->width[k], &layer, room + plan->x[k], room + plan->near,
                 room + plan->panel);
    }
}

/* What all grids say of one stream, a plane each, the finest first. fields are changed. */
static void stream(const Net *net, const Plan *plan, const float *fields[3], float sign, float *room,
                   float *heads) {
    int64_t place = 0;
    float *near = room + plan->near, *between = room + plan->between, *panel = room + plan->panel;
    float *head = heads + plan->heads, shrink = 1.0f;
    for (int k = 0; k < net->levels; k++, shrink *= 0.25f) {
        const int32_t width = net->width[k], finer = k ? net->width[k - 1] : 0;
        const Grid *grid = &plan->grid[k];
        if (k) coarsen(grid - 1, grid, fields, room + plan->fields[k]);
        if (k) pool(grid - 1, grid, finer, room + plan->x[k - 1], between);
        show(grid, fields, sign, shrink, near);
        const Layer layer = next_layer(net, &place, TAPS * INPUTS + finer, width);
        enter(grid, finer, &layer, near, between, room + plan->x[k], panel);
        residuals(net, plan, room, k, net->down[k], &place);
    }
    for (int k = net->levels - 1; k >= 0; k--) {
        const int32_t width = net->width[k], finer = k ? net->width[k - 1] : 0;
        const Grid *grid = &plan->grid[k];
        residuals(net, plan, room, k, net->up[k], &place);
        const float *w = net->weights + place;
        place += whole(width, OUTS);
        const Layer layer = next_layer(net, &place, width, finer);
        head -= grid->cells;
        leave(grid, width, w, &layer, room + plan->x[k], head, between, panel);
        if (k) spread(grid - 1, grid, finer, between, room + plan->x[k - 1]);
    }
}

/* Add the same spline on cells of half the side, in their square: from (rows, stride) of the coarser
   grid. A row of `to` is `stride` long. */
static void add_halved(const Grid *coarse, const float *from, float *to, int64_t stride) {
    const int32_t last = coarse->columns - 1;
    for (int32_t i = 0; i < 2 * coarse->rows; i++, to += stride) {
        int32_t other = i % 2 ? i / 2 + 1 : i / 2 - 1; /* the row that is a quarter of the sum */
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

/* The odd part of what all grids say, summed on the finest: answer (rows, columns).

   heads: of the stream as it is, then of the swapped one. The first ones are changed. */
static void join(const Net *net, const Plan *plan, float *heads, float *answer) {
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
        if (k + 1 < net->levels) add_halved(grid + 1, coarser, to, stride);
    }
}

/* How many floats there are in the weights, in the heads of a stream and in the room of a thread. */
void geonet_unet_sizes(const Net *net, int32_t rows, int32_t columns, int64_t *sizes) {
    const Plan plan = plan_of(net, rows, columns);
    sizes[0] = 0;
    sizes[1] = plan.heads;
    sizes[2] = plan.room;
    for (int k = 0; k < net->levels; k++) {
        const int64_t width = net->width[k], held = whole(width, OUTS);
        const int64_t finer = k ? net->width[k - 1] : 0;
        sizes[0] += (TAPS * INPUTS + finer + 1) * held; /* enter */
        sizes[0] += (net->down[k] + net->up[k]) * (TAPS * width + 1) * held;
        sizes[0] += held + (width + 1) * whole(finer, OUTS); /* leave */
    }
}

/* residual, weight and solved, (pairs, rows, columns), to coefficients, likewise: answer.

   heads: room for (pairs, 2, heads of a stream). rooms: (threads, room of a thread). */
void geonet_unet(const Net *net, const float *residual, const float *weight, const float *solved,
                 float *answer, float *heads, float *rooms, int32_t rows, int32_t columns,
                 int64_t pairs, int32_t threads) {
    const Plan plan = plan_of(net, rows, columns);
    const int64_t cells = (int64_t)rows * columns, streams = 2 * pairs;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int part = 0; part < threads; part++)
        for (int64_t i = streams * part / threads; i < streams * (part + 1) / threads; i++) {
            const int64_t from = i / 2 * cells;
            const float *fields[3] = {residual + from, weight + from, solved + from};
            stream(net, &plan, fields, i % 2 ? -1.0f : 1.0f, rooms + part * plan.room,
                   heads + i * plan.heads);
        }
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && pairs > 1)
    for (int64_t pair = 0; pair < pairs; pair++)
        join(net, &plan, heads + 2 * pair * plan.heads, answer + pair * cells);
}

/* What unet.py compares with its own: a library that is older than it must not be called. */
const int32_t geonet_unet_made_for[] = {VERSION, MOST_LEVELS, INPUTS, OUTS, sizeof(Net)};
