/* Residual of the Newton engine at a potential in quadratic splines, and frames of its path.

   With v = grad u, and densities that are constant in their cells,

       rho0(y) = mu0(y - v/2) det(I - D2u/2)        rho1(y) = mu1(y + v/2) det(I + D2u/2),

   with mu averaged over the image of the half-cell, a box. If the map folds, the determinant
   counts as negative: then the mass of rho stays one, and the fold is pushed apart.

   A barycenter has one potential for each density, and its density at y + grad u. With a reach,
   densities are weighted by the exponential of the potential at their end. system.py and path.py
   have the same in torch. */

#include "quadratic.h"

#define VERSION 10 /* increment with every change of the interface to compiled.py */

#define MIN_WIDTH 1e-3f /* of deposited boxes, in cells of a frame */

#define MAX_EXPONENT 20.0f /* of the weights of densities with a reach */

enum { BALANCED, HELLINGER, FISHER_RAO };

/* The densities that belong to one potential: a pair, or one density of a barycenter. */
typedef struct {
    Grid grid;
    double step[3]; /* side lengths of a cell, for the axes of the grid */
    const float *densities[2]; /* (cells) each; only the second one for a barycenter */
    const double *sums; /* of the second density over all cells before each vertex, for boxes wider
                           than a cell: (shape + 1); NULL for a pair, which has none */
    double positions[2]; /* s, for densities at y + s grad u */
    double min_width; /* smallest width in cells over which a density is averaged */
    double weight; /* factor of residual, weights and mass; one for a pair */
    double reach; /* in the units of `step`; unused if balanced */
    int32_t growth; /* BALANCED, HELLINGER or FISHER_RAO */
    int32_t first_side; /* 0 for a pair, 1 for one density */
} Problem;

/* ---- elementary functions without branches, which compilers vectorise */

INLINE float float_from_bits(int32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE int32_t bits_of_float(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* exp(x) for |x| < 87, with a relative error of 1e-7 (1 + |x|/2): 2^k exp(r), |r| <= log(2)/2. */
INLINE float fast_exp(float x) {
    const float scaled = 1.44269504f * x;
    const int32_t k = (int32_t)(scaled + (scaled < 0 ? -0.5f : 0.5f));
    const float r = x - (float)k * 0.693147181f;
    float p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = (p * r + 8.3334519073e-3f) * r + 4.1665795894e-2f;
    p = (p * r + 1.6666665459e-1f) * r + 5.0000001201e-1f;
    const float power = 1 + r + r * r * p;
    return power * float_from_bits((k + 127) << 23);
}

/* log(1 + x) for x >= 0, with a relative error of 3e-7, also for small x: 1 + x = 2^k (1 + f), and
   log(1 + f) = 2 atanh(f / (2 + f)). */
INLINE float fast_log1p(float x) {
    const int32_t bits = bits_of_float(1 + x) - 0x3f3504f3; /* of the root of 1/2 */
    const int32_t k = bits >> 23;
    const float reduced = float_from_bits((bits & 0x007fffff) + 0x3f3504f3) - 1;
    const float f = k == 0 ? x : reduced, s = f / (2 + f), s2 = s * s;
    const float series = 2 + s2 * (2.0f / 3 + s2 * (2.0f / 5 + s2 * (2.0f / 7 + s2 * (2.0f / 9))));
    return (float)k * 0.693147181f + s * series;
}

/* atan(x)/x for x >= 0, one at zero, with a relative error of 3e-7. */
INLINE float fast_atan_ratio(float x) {
    const int large = x > 2.41421356f, medium = x > 0.41421356f; /* tan(3 pi/8), tan(pi/8) */
    const float y = large ? -1 / x : medium ? (x - 1) / (x + 1) : x, y2 = y * y;
    const float series = (((8.05374449538e-2f * y2 - 1.38776856032e-1f) * y2 + 1.99777106478e-1f) * y2 -
                          3.33329491539e-1f) * y2;
    const float angle = (large ? 1.57079633f : 0.785398163f) + y + y * series;
    return medium ? angle / x : 1 + series;
}

INLINE int has_periodic_axis(const Grid *grid) {
    return grid->periodic[0] || grid->periodic[1] || grid->periodic[2];
}

/* Position on a periodic axis, from 0 to below n; 0 for numbers that are not finite. */
INLINE float wrap_position(float x, int32_t n) {
    const float wrapped = x - (float)n * floorf(x / (float)n);
    return wrapped >= 0 && wrapped < (float)n ? wrapped : 0;
}

/* Means of a density over boxes, centres and widths in cells. The density is constant in each
   cell and boxes are at most a cell wide, so that they overlap at most two cells along an
   axis.

   Cells have 32-bit indices, so that vectors of them are short. */
INLINE void average_over_boxes(const int d, const Grid *grid, const float *values,
                               float centre[3][BLOCK], float width[3][BLOCK], int32_t count,
                               float *mean) {
    int32_t at[BLOCK], next[3][BLOCK], stride = 1;
    float fraction[3][BLOCK];
    for (int axis = d - 1; axis >= 0; axis--) {
        const int32_t n = grid->shape[3 - d + axis];
        if (grid->periodic[3 - d + axis]) {
#pragma omp simd
            for (int32_t j = 0; j < count; j++) {
                const float w = width[axis][j], low = centre[axis][j] - 0.5f * w;
                const float from = wrap_position(low, n);
                const int32_t i = (int32_t)from;
                const float beyond = (from + w - (float)(i + 1)) / w;
                fraction[axis][j] = beyond > 0 ? beyond : 0;
                next[axis][j] = i < n - 1 ? stride : -i * stride;
                at[j] = (axis == d - 1 ? 0 : at[j]) + i * stride;
            }
            stride *= n;
            continue;
        }
#pragma omp simd
        for (int32_t j = 0; j < count; j++) {
            const float w = width[axis][j], upper = (float)n - w;
            float low = centre[axis][j] - 0.5f * w;
            low = low > 0 ? low : 0;
            low = low < upper ? low : upper;
            int32_t i = (int32_t)low;
            i = i < n - 1 ? i : n - 1;
            const float beyond = (low + w - (float)(i + 1)) / w;
            fraction[axis][j] = beyond > 0 ? beyond : 0;
            next[axis][j] = i < n - 1 ? stride : 0;
            at[j] = (axis == d - 1 ? 0 : at[j]) + i * stride;
        }
        stride *= n;
    }
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        const int32_t i = at[j], last = next[d - 1][j];
        const float t = fraction[d - 1][j];
        const float a = values[i] + t * (values[i + last] - values[i]);
        if (d == 1) mean[j] = a;
        if (d > 1) {
            const int32_t k = i + next[d - 2][j];
            const float b = values[k] + t * (values[k + last] - values[k]);
            const float face = a + fraction[d - 2][j] * (b - a);
            if (d == 2) mean[j] = face;
            if (d == 3) {
                const int32_t l = i + next[0][j], m = k + next[0][j];
                const float e = values[l] + t * (values[l + last] - values[l]);
                const float f = values[m] + t * (values[m + last] - values[m]);
                mean[j] = face + fraction[0][j] * (e + fraction[1][j] * (f - e) - face);
            }
        }
    }
}

/* `average_over_boxes` in 3D, if the last axis has two cells at least: pairs of cells along it are
   copied together, since single numbers from many places take most of the time. */
INLINE void average_over_boxes_3d(const Grid *grid, const float *values, float centre[3][BLOCK],
                                  float width[3][BLOCK], int32_t count, float *mean) {
    const int32_t strides[3] = {grid->shape[1] * grid->shape[2], grid->shape[2], 1};
    const int32_t below = grid->shape[0] > 1 ? strides[0] : 0;
    const int32_t beside = grid->shape[1] > 1 ? strides[1] : 0;
    int32_t first[BLOCK];
    float fraction[3][BLOCK], pairs[4][BLOCK][2];
    for (int axis = 0; axis < 3; axis++) {
        const int32_t n = grid->shape[axis], last = n > 1 ? n - 2 : 0, stride = strides[axis];
#pragma omp simd
        for (int32_t j = 0; j < count; j++) {
            const float w = width[axis][j], upper = (float)n - w;
            float low = centre[axis][j] - 0.5f * w;
            low = low > 0 ? low : 0;
            low = low < upper ? low : upper;
            int32_t i = (int32_t)low;
            i = i < last ? i : last;
            float beyond = (low + w - (float)(i + 1)) / w;
            beyond = beyond > 0 ? beyond : 0;
            fraction[axis][j] = beyond < 1 ? beyond : 1;
            first[j] = (axis == 0 ? 0 : first[j]) + i * stride;
        }
    }
    for (int32_t j = 0; j < count; j++) {
        const float *at = values + first[j];
        memcpy(pairs[0][j], at, sizeof pairs[0][j]);
        memcpy(pairs[1][j], at + beside, sizeof pairs[1][j]);
        memcpy(pairs[2][j], at + below, sizeof pairs[2][j]);
        memcpy(pairs[3][j], at + below + beside, sizeof pairs[3][j]);
    }
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        const float t = fraction[2][j], s = 1 - t, u = fraction[1][j], v = fraction[0][j];
        const float above = (1 - u) * (s * pairs[0][j][0] + t * pairs[0][j][1]) +
                            u * (s * pairs[1][j][0] + t * pairs[1][j][1]);
        const float under = (1 - u) * (s * pairs[2][j][0] + t * pairs[2][j][1]) +
                            u * (s * pairs[3][j][0] + t * pairs[3][j][1]);
        mean[j] = (1 - v) * above + v * under;
    }
}

/* Mean of a density over one box of any width, from its sums over all cells before each vertex. */
static float average_over_wide_box(int d, const Grid *grid, const double *sums, const float *centre,
                                   const float *width) {
    int64_t index[3][5];
    double weight[3][5], total = 0;
    int count[3] = {1, 1, 1};
    int64_t stride = 1;
    for (int a = 0; a < 3 - d; a++) index[a][0] = 0, weight[a][0] = 1;
    for (int a = d - 1; a >= 0; a--) {
        const int axis = 3 - d + a, wraps = grid->periodic[axis];
        const int32_t n = grid->shape[axis];
        const double w = width[a] < (float)n ? width[a] : n;
        double low = centre[a] - 0.5 * w, periods = 0;
        if (!wraps) low = low < n - w ? low : n - w;
        if (!wraps) low = low > 0 ? low : 0;
        for (int end = 0; end < 2; end++) {
            double p = low + end * w;
            const double sign = (end ? 1 : -1) / w, turns = wraps ? floor(p / n) : 0;
            p -= turns * n;
            p = p > 0 ? p : 0; /* also if it is not a number */
            p = p < n ? p : n;
            const int32_t i = p < n - 1 ? (int32_t)p : n - 1;
            index[axis][2 * end] = i * stride;
            weight[axis][2 * end] = sign * (i + 1 - p);
            index[axis][2 * end + 1] = (i + 1) * stride;
            weight[axis][2 * end + 1] = sign * (p - i);
            periods += sign * turns;
        }
        index[axis][4] = n * stride;
        weight[axis][4] = periods;
        count[axis] = wraps ? 5 : 4;
        stride *= n + 1;
    }
    for (int i = 0; i < count[0]; i++)
        for (int j = 0; j < count[1]; j++)
            for (int k = 0; k < count[2]; k++)
                total += weight[0][i] * weight[1][j] * weight[2][k] *
                         sums[index[0][i] + index[1][j] + index[2][k]];
    return total > 0 ? (float)total : 0;
}

/* `average_over_wide_box` for the boxes of a block that are wider than a cell. */
static __attribute__((noinline)) void widen_means(int d, const Grid *grid, const double *sums,
                                                  float centre[3][BLOCK], float width[3][BLOCK],
                                                  int32_t count, float *mean) {
    for (int32_t j = 0; j < count; j++) {
        float at[3], w[3], largest = 0;
        for (int a = 0; a < d; a++) {
            at[a] = centre[a][j];
            w[a] = width[a][j] > 1e-3f ? width[a][j] : 1e-3f;
            largest = w[a] > largest ? w[a] : largest;
        }
        if (largest > 1) mean[j] = average_over_wide_box(d, grid, sums, at, w);
    }
}

/* The potential in a block of a row, with derivatives along some axes only. */
typedef struct {
    /* In 1D and 2D: along the last axis, by point and row of taps. */
    double value[2][3][BLOCK], slope[2][3][BLOCK], curvature[3][BLOCK];
    /* In 3D: along the leading axes, by leading point, with a column beyond either end. The first
       letter is for the first axis: v for the value, s for the slope, c for the curvature, which
       is the same at both points of an axis. */
    double vv[4][BLOCK + 2], sv[4][BLOCK + 2], vs[4][BLOCK + 2], ss[4][BLOCK + 2];
    double cv[2][BLOCK + 2], vc[2][BLOCK + 2];
} Potential;

/* Spline with three taps, or its derivative, at a point q of a cell. */
INLINE double combine(int order, int q, double x0, double x1, double x2) {
    return W[order][q][0] * x0 + W[order][q][1] * x1 + W[order][q][2] * x2;
}

/* Values, slopes and curvatures along the last axis, for every row of taps, in 1D and 2D. */
INLINE void evaluate_row(const int d, const double *const *taps, int32_t start, int32_t count,
                         Potential *u) {
    for (int k = 0; k < tap_row_count(d); k++) {
        const double *c = taps[k] + start;
        for (int q = 0; q < 2; q++)
#pragma omp simd
            for (int32_t j = 0; j < count; j++) {
                u->value[q][k][j] = combine(0, q, c[j], c[j + 1], c[j + 2]);
                u->slope[q][k][j] = combine(1, q, c[j], c[j + 1], c[j + 2]);
            }
#pragma omp simd
        for (int32_t j = 0; j < count; j++) u->curvature[k][j] = c[j] - 2 * c[j + 1] + c[j + 2];
    }
}

/* Values, slopes and curvatures along the first two axes, in 3D. */
INLINE void evaluate_leading_axes(const double *const *taps, int32_t start, int32_t count,
                                  Potential *u) {
    double value[2][3][BLOCK + 2], slope[2][3][BLOCK + 2], curvature[3][BLOCK + 2];
    for (int k = 0; k < 3; k++) {
        const double *x0 = taps[k] + start, *x1 = taps[3 + k] + start, *x2 = taps[6 + k] + start;
        for (int p = 0; p < 2; p++)
#pragma omp simd
            for (int32_t j = 0; j < count + 2; j++) {
                value[p][k][j] = combine(0, p, x0[j], x1[j], x2[j]);
                slope[p][k][j] = combine(1, p, x0[j], x1[j], x2[j]);
            }
#pragma omp simd
        for (int32_t j = 0; j < count + 2; j++) curvature[k][j] = x0[j] - 2 * x1[j] + x2[j];
    }
    for (int p = 0; p < 4; p++) {
        const double (*v)[BLOCK + 2] = value[p / 2], (*s)[BLOCK + 2] = slope[p / 2];
#pragma omp simd
        for (int32_t j = 0; j < count + 2; j++) {
            u->vv[p][j] = combine(0, p % 2, v[0][j], v[1][j], v[2][j]);
            u->vs[p][j] = combine(1, p % 2, v[0][j], v[1][j], v[2][j]);
            u->sv[p][j] = combine(0, p % 2, s[0][j], s[1][j], s[2][j]);
            u->ss[p][j] = combine(1, p % 2, s[0][j], s[1][j], s[2][j]);
        }
    }
    for (int p = 0; p < 2; p++) {
        const double (*v)[BLOCK + 2] = value[p], (*c)[BLOCK + 2] = curvature;
#pragma omp simd
        for (int32_t j = 0; j < count + 2; j++) {
            u->cv[p][j] = combine(0, p, c[0][j], c[1][j], c[2][j]);
            u->vc[p][j] = v[0][j] - 2 * v[1][j] + v[2][j];
        }
    }
}

INLINE void evaluate_potential(const int d, const double *const *taps, int32_t start, int32_t count,
                               Potential *u) {
    if (d == 3)
        evaluate_leading_axes(taps, start, count, u);
    else
        evaluate_row(d, taps, start, count, u);
}

/* Derivatives in 3D at one point of every cell of a block. */
INLINE void evaluate_last_axis(const Potential *u, const double *step, int p, int q, int32_t count,
                               float gradient[3][BLOCK], float hessian[6][BLOCK]) {
    const double i0 = 1 / step[0], i1 = 1 / step[1], i2 = 1 / step[2];
    const double *vv = u->vv[p], *sv = u->sv[p], *vs = u->vs[p], *ss = u->ss[p];
    const double *cv = u->cv[p % 2], *vc = u->vc[p / 2];
#define LAST_AXIS(order, row) combine(order, q, row[j], row[j + 1], row[j + 2])
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        gradient[0][j] = (float)(i0 * LAST_AXIS(0, sv));
        gradient[1][j] = (float)(i1 * LAST_AXIS(0, vs));
        gradient[2][j] = (float)(i2 * LAST_AXIS(1, vv));
        hessian[0][j] = (float)(i0 * i0 * LAST_AXIS(0, cv));
        hessian[1][j] = (float)(i0 * i1 * LAST_AXIS(0, ss));
        hessian[2][j] = (float)(i0 * i2 * LAST_AXIS(1, sv));
        hessian[3][j] = (float)(i1 * i1 * LAST_AXIS(0, vc));
        hessian[4][j] = (float)(i1 * i2 * LAST_AXIS(1, vs));
        hessian[5][j] = (float)(i2 * i2 * LAST_AXIS(2, vv));
    }
#undef LAST_AXIS
}

/* Gradient and second derivatives (packed) of u at one point of every cell of a block. */
INLINE void evaluate_derivatives(const int d, const Potential *u, const double *step, int p, int q,
                                 int32_t count, float gradient[3][BLOCK], float hessian[6][BLOCK]) {
    if (d == 3) {
        evaluate_last_axis(u, step, p, q, count, gradient, hessian);
        return;
    }
    const double i0 = 1 / step[0], i1 = d > 1 ? 1 / step[1] : 0;
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        double g[2] = {0, 0}, s[3] = {0, 0, 0};
        for (int k = 0; k < tap_row_count(d); k++) {
            const double v = u->value[q][k][j], l = u->slope[q][k][j], b = u->curvature[k][j];
            if (d == 1) {
                g[0] += l;
                s[0] += b;
            }
            if (d == 2) {
                g[0] += leading_weight(d, 1, 0, p, k) * v;
                g[1] += leading_weight(d, 0, 0, p, k) * l;
                s[0] += leading_weight(d, 2, 0, p, k) * v;
                s[1] += leading_weight(d, 1, 0, p, k) * l;
                s[2] += leading_weight(d, 0, 0, p, k) * b;
            }
        }
        gradient[0][j] = (float)(g[0] * i0);
        if (d > 1) gradient[1][j] = (float)(g[1] * i1);
        hessian[0][j] = (float)(s[0] * i0 * i0);
        if (d == 2) {
            hessian[1][j] = (float)(s[1] * i0 * i1);
            hessian[2][j] = (float)(s[2] * i1 * i1);
        }
    }
}

/* u at one point of cell j of a block. */
INLINE double value_at(const int d, const Potential *u, int p, int q, int32_t j) {
    if (d == 3) return combine(0, q, u->vv[p][j], u->vv[p][j + 1], u->vv[p][j + 2]);
    double sum = 0;
    for (int k = 0; k < tap_row_count(d); k++)
        sum += leading_weight(d, 0, 0, p, k) * u->value[q][k][j];
    return sum;
}

/* m = I + s D2u (packed), its determinant, and the smallest of its leading minors: the map
   folds unless that is positive. */
INLINE void evaluate_jacobian(const int d, float s, int32_t count, const float hessian[6][BLOCK],
                              float m[6][BLOCK], float *det, float *minor_min) {
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        if (d == 1) {
            m[0][j] = 1 + s * hessian[0][j];
            det[j] = minor_min[j] = m[0][j];
        }
        if (d == 2) {
            m[0][j] = 1 + s * hessian[0][j];
            m[1][j] = s * hessian[1][j];
            m[2][j] = 1 + s * hessian[2][j];
            det[j] = m[0][j] * m[2][j] - m[1][j] * m[1][j];
            minor_min[j] = det[j] < m[0][j] ? det[j] : m[0][j];
        }
        if (d == 3) {
            m[0][j] = 1 + s * hessian[0][j];
            m[1][j] = s * hessian[1][j];
            m[2][j] = s * hessian[2][j];
            m[3][j] = 1 + s * hessian[3][j];
            m[4][j] = s * hessian[4][j];
            m[5][j] = 1 + s * hessian[5][j];
            const float minor = m[0][j] * m[3][j] - m[1][j] * m[1][j];
            det[j] = m[0][j] * (m[3][j] * m[5][j] - m[4][j] * m[4][j]) -
                     m[1][j] * (m[1][j] * m[5][j] - m[4][j] * m[2][j]) +
                     m[2][j] * (m[1][j] * m[4][j] - m[3][j] * m[2][j]);
            minor_min[j] = det[j] < m[0][j] ? det[j] : m[0][j];
            minor_min[j] = minor < minor_min[j] ? minor : minor_min[j];
        }
    }
}

/* The part of `pull_back` for folds in 2D, in closed form: with S = M M, |M| = S^(1/2) =
   (S + |det M| I) / (tr S + 2 |det M|)^(1/2). */
INLINE void add_folds_2d(int32_t count, float m[6][BLOCK], const float *density,
                         const float *minor_min, float share, float *rho, float *det,
                         float cof[6][BLOCK], float *folded_mass) {
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (int32_t j = 0; j < count; j++) {
        const float folded = minor_min[j] > 0 ? 0 : density[j], size = fabsf(det[j]);
        const float a = m[0][j] * m[0][j] + m[1][j] * m[1][j] + size;
        const float c = m[2][j] * m[2][j] + m[1][j] * m[1][j] + size;
        const float trace = sqrtf(a + c) + 1e-20f, half = share * folded / trace;
        cof[0][j] += half * c;
        cof[1][j] -= half * m[1][j] * (m[0][j] + m[2][j]);
        cof[2][j] += half * a;
        det[j] = minor_min[j] > 0 ? det[j] : -size;
        rho[j] = density[j] * det[j];
        total += folded;
    }
    *folded_mass += total;
}

/* Correct det, rho and cofactors at the folds of a block in 3D: det is minus the product of
   |eigenvalues|, and cofactors are those of the matrix with |eigenvalues|.

   They are |C|, with the cofactors C of m. If all eigenvalues are negative, C is positive.
   Otherwise one eigenvalue x has another sign than both others, C has one positive eigenvalue k,
   for the same eigenvector e, and |C| = 2 k e e^t - C. With the invariants of m,

       k = S - x (T - x)        e e^t = cof(m - x I) / trace = (C - x (T I - m) + x^2 I) / p'(x).

   x is the smallest or the largest root of p(x) = x^3 - T x^2 + S x - det, to which Newton's
   method converges from a bound. */
INLINE void fold_block(int32_t count, float m[6][BLOCK], const float *density,
                       const float *minor_min, float share, float *det, float *rho,
                       float cof[6][BLOCK], float *folded_mass) {
    float folded = 0;
#pragma omp simd reduction(+ : folded)
    for (int32_t j = 0; j < count; j++) {
        const double a = m[0][j], b = m[1][j], c = m[2][j], d = m[3][j], e = m[4][j], f = m[5][j];
        const double c0 = d * f - e * e, c1 = c * e - b * f, c2 = b * e - c * d;
        const double c3 = a * f - c * c, c4 = b * c - a * e, c5 = a * d - b * b;
        const double T = a + d + f, S = c0 + c3 + c5, product = a * c0 + b * c1 + c * c2;
        const double third = T / 3, spread = third * third - S / 3;
        const double radius = 2 * sqrt(spread > 0 ? spread : 0);
        double x = product > 0 ? third + radius : third - radius;
        for (int step = 0; step < 8; step++) {
            const double slope = (3 * x - 2 * T) * x + S;
            x -= (((x - T) * x + S) * x - product) / (slope > 1e-30 ? slope : 1e-30);
        }
        const double trace = (3 * x - 2 * T) * x + S, k = S - x * (T - x);
        const int all_negative = product <= 0 && T < 0 && S > 0;
        const double scale = all_negative || !(trace > 1e-30) ? 0 : 2 * k / trace;
        const double sign = all_negative ? 1 : -1, rest = x * x - x * T;
        const int folds = !(minor_min[j] > 0);
        const float half = folds ? share * density[j] : 0;
        cof[0][j] += half * (float)(sign * c0 + scale * (c0 + x * a + rest));
        cof[1][j] += half * (float)(sign * c1 + scale * (c1 + x * b));
        cof[2][j] += half * (float)(sign * c2 + scale * (c2 + x * c));
        cof[3][j] += half * (float)(sign * c3 + scale * (c3 + x * d + rest));
        cof[4][j] += half * (float)(sign * c4 + scale * (c4 + x * e));
        cof[5][j] += half * (float)(sign * c5 + scale * (c5 + x * f + rest));
        det[j] = folds ? -fabsf(det[j]) : det[j];
        rho[j] = density[j] * det[j];
        folded += folds ? density[j] : 0;
    }
    *folded_mass += folded;
}

/* Derivatives of the potential at one point of every cell of a block. */
typedef struct {
    float centre[3][BLOCK]; /* centres of the half-cells, in cells */
    float value[BLOCK]; /* only with a reach */
    float gradient[3][BLOCK], hessian[6][BLOCK];
} Point;

/* The displacement of the Wasserstein-Fisher-Rao cost is s G grad u with G = 2 D2h*, instead of
   s grad u, where h* is the conjugate of the cost of half the way. G has the eigenvalue 1/(1 + q^2)
   along grad u and atan(q)/q across it, q = |grad u|/reach. */
typedef struct {
    float across[BLOCK]; /* eigenvalue atan(q)/q, the ratio of displacement and s grad u */
    float along[BLOCK]; /* eigenvalue 1/(1 + q^2) */
    float square[BLOCK]; /* |grad u|^2 */
} Shortening;

/* |grad u|^2 in a block. */
INLINE void square_gradient(const int d, const Point *point, int32_t count, float *square) {
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        const float x = point->gradient[0][j];
        const float y = d > 1 ? point->gradient[1][j] : 0;
        const float z = d > 2 ? point->gradient[2][j] : 0;
        square[j] = x * x + y * y + z * z;
    }
}

INLINE void evaluate_shortening(const int d, const Problem *problem, const Point *point,
                                int32_t count, Shortening *shortening) {
    const float inverse = (float)(1 / (problem->reach * problem->reach));
    square_gradient(d, point, count, shortening->square);
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        const float q2 = shortening->square[j] * inverse;
        shortening->along[j] = 1 / (1 + q2);
        shortening->across[j] = fast_atan_ratio(sqrtf(q2));
    }
}

/* Entry (a, a) of G at cell j. */
INLINE float shortened_entry(const Shortening *shortening, const Point *point, int a, int32_t j) {
    const float across = shortening->across[j], square = shortening->square[j];
    const float part = square > 0 ? point->gradient[a][j] * point->gradient[a][j] / square : 0;
    return across + (shortening->along[j] - across) * part;
}

/* hessian + (G^-1 - I)/s, so that I + s (...) = G^-1 + s D2u; multiplies factor by det G. */
INLINE void shorten_hessian(const int d, float s, const Point *point, const Shortening *shortening,
                            int32_t count, float hessian[6][BLOCK], float *factor) {
    float own[BLOCK], other[BLOCK];
    const float inverse = 1 / s;
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        const float across = shortening->across[j], along = shortening->along[j];
        const float square = shortening->square[j];
        own[j] = inverse * (1 / across - 1);
        other[j] = square > 0 ? inverse * (1 / along - 1 / across) / square : 0;
        factor[j] *= along * (d > 1 ? across : 1) * (d > 2 ? across : 1);
    }
    int e = 0;
    for (int a = 0; a < d; a++)
        for (int b = a; b < d; b++, e++) {
            const float diagonal = a == b ? 1 : 0;
#pragma omp simd
            for (int32_t j = 0; j < count; j++)
                hessian[e][j] = point->hessian[e][j] + diagonal * own[j] +
                                other[j] * point->gradient[a][j] * point->gradient[b][j];
        }
}

/* Exponents of the weights of a density with a reach in a block: -phi/lambda, with the potential phi
   at its end, and lambda = reach^2/2. */
INLINE void evaluate_exponents(const int d, const Problem *problem, float s, const Point *point,
                               int32_t count, float *exponent) {
    const float inverse = (float)(2 / (problem->reach * problem->reach));
    const float slope = s < 0 ? inverse : -inverse, half = 0.5f * fabsf(s) * inverse;
    float cost[BLOCK];
    square_gradient(d, point, count, cost);
    if (problem->growth == FISHER_RAO)
#pragma omp simd
        for (int32_t j = 0; j < count; j++) cost[j] = 0.5f * fast_log1p(0.5f * inverse * cost[j]);
    else
#pragma omp simd
        for (int32_t j = 0; j < count; j++) cost[j] *= half;
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        const float full = slope * point->value[j] - cost[j];
        const float limited = full < MAX_EXPONENT ? full : MAX_EXPONENT;
        exponent[j] = limited > -4 * MAX_EXPONENT ? limited : -4 * MAX_EXPONENT;
    }
}

/* The weights of a density with a reach in a block. */
INLINE void evaluate_weights(const int d, const Problem *problem, int side, const Point *point,
                             int32_t count, float *weight) {
    evaluate_exponents(d, problem, (float)problem->positions[side], point, count, weight);
#pragma omp simd
    for (int32_t j = 0; j < count; j++) weight[j] = fast_exp(weight[j]);
}

/* Add the mass that a density loses by its weight, the integral of rho (1/weight - 1), at a point of
   the cells of a block. */
INLINE double sum_growth(const int d, const Problem *problem, int side, const Point *point,
                         int32_t count, const float *rho) {
    double total = 0;
    float exponent[BLOCK];
    evaluate_exponents(d, problem, (float)problem->positions[side], point, count, exponent);
#pragma omp simd reduction(+ : total)
    for (int32_t j = 0; j < count; j++) {
        const float x = -exponent[j];
        const float series = x * (1 + 0.5f * x * (1 + x / 3)), full = fast_exp(x) - 1;
        total += (double)(rho[j] * (fabsf(x) < 1e-2f ? series : full));
    }
    return total;
}

/* Pull one density back: rho = det(I + s D2u) mu(y + s grad u), and det. Adds |s| mu times the
   cofactors to `cof`, and mu at folds to `folded_mass`. With a reach mu is weighted, if
   `is_weighted`. */
INLINE void pull_back_in(const int d, const Problem *problem, int side, int is_weighted,
                         int32_t count, const Point *point, float *rho, float *det,
                         float cof[6][BLOCK], float *folded_mass) {
    const float *mu = problem->densities[side];
    const float s = (float)problem->positions[side], share = fabsf(s);
    float m[6][BLOCK], shortened[6][BLOCK], factor[BLOCK];
    float density[BLOCK], minor_min[BLOCK], x[3][BLOCK], width[3][BLOCK], wide[3][BLOCK];
    float smallest = 1;
    const float(*hessian)[BLOCK] = point->hessian;
    for (int a = 0; a < d; a++) {
        const float scale = s / (float)problem->step[a], min_width = (float)problem->min_width;
#pragma omp simd
        for (int32_t j = 0; j < count; j++) {
            x[a][j] = point->centre[a][j] + scale * point->gradient[a][j];
            float w = 0.5f + 0.5f * s * hessian[diagonal_entry(d, a)][j];
            w = w > min_width ? w : min_width;
            wide[a][j] = w;
            width[a][j] = w < 1 ? w : 1;
        }
    }
    if (problem->growth != BALANCED && is_weighted)
        evaluate_weights(d, problem, side, point, count, factor);
    else
        for (int32_t j = 0; j < count; j++) factor[j] = 1;
    if (problem->growth == FISHER_RAO) {
        Shortening shortening;
        evaluate_shortening(d, problem, point, count, &shortening);
        shorten_hessian(d, s, point, &shortening, count, shortened, factor);
        for (int a = 0; a < d; a++)
#pragma omp simd
            for (int32_t j = 0; j < count; j++) {
                const float scale = s / (float)problem->step[a];
                const float entry = shortened_entry(&shortening, point, a, j);
                x[a][j] =
                    point->centre[a][j] + scale * shortening.across[j] * point->gradient[a][j];
                float w = 0.5f + 0.5f * s * entry * hessian[diagonal_entry(d, a)][j];
                w = w > (float)problem->min_width ? w : (float)problem->min_width;
                width[a][j] = w < 1 ? w : 1;
            }
        hessian = (const float(*)[BLOCK])shortened;
    }
    if (d == 3 && problem->grid.shape[2] > 1 && !has_periodic_axis(&problem->grid))
        average_over_boxes_3d(&problem->grid, mu, x, width, count, density);
    else
        average_over_boxes(d, &problem->grid, mu, x, width, count, density);
    if (problem->sums) widen_means(d, &problem->grid, problem->sums, x, wide, count, density);
    if (problem->growth != BALANCED)
        for (int32_t j = 0; j < count; j++) density[j] *= factor[j];
    evaluate_jacobian(d, s, count, hessian, m, det, minor_min);
#pragma omp simd reduction(min : smallest)
    for (int32_t j = 0; j < count; j++) {
        const float half = minor_min[j] > 0 ? share * density[j] : 0;
        if (d == 1) cof[0][j] += share * density[j];
        if (d == 2) {
            cof[0][j] += half * m[2][j];
            cof[1][j] -= half * m[1][j];
            cof[2][j] += half * m[0][j];
        }
        if (d == 3) {
            cof[0][j] += half * (m[3][j] * m[5][j] - m[4][j] * m[4][j]);
            cof[1][j] += half * (m[2][j] * m[4][j] - m[1][j] * m[5][j]);
            cof[2][j] += half * (m[1][j] * m[4][j] - m[2][j] * m[3][j]);
            cof[3][j] += half * (m[0][j] * m[5][j] - m[2][j] * m[2][j]);
            cof[4][j] += half * (m[1][j] * m[2][j] - m[0][j] * m[4][j]);
            cof[5][j] += half * (m[0][j] * m[3][j] - m[1][j] * m[1][j]);
        }
        rho[j] = density[j] * det[j];
        smallest = minor_min[j] < smallest ? minor_min[j] : smallest;
    }
    if (smallest > 0) return;
    if (d == 3) {
        fold_block(count, m, density, minor_min, share, det, rho, cof, folded_mass);
        return;
    }
    if (d == 2) {
        add_folds_2d(count, m, density, minor_min, share, rho, det, cof, folded_mass);
        return;
    }
    for (int32_t j = 0; j < count; j++) /* in 1D the determinant has its sign already */
        if (!(minor_min[j] > 0)) *folded_mass += density[j];
}

/* One function for each dimension, which all callers share: inlining it everywhere would take the
   compiler minutes. */
#define DEFINE_PULL_BACK(d)                                                                        \
    static __attribute__((noinline)) void pull_back_##d(                                           \
        const Problem *problem, int side, int is_weighted, int32_t count, const Point *point,      \
        float *rho, float *det, float cof[6][BLOCK], float *folded_mass) {                         \
        pull_back_in(d, problem, side, is_weighted, count, point, rho, det, cof, folded_mass);     \
    }
DEFINE_PULL_BACK(1)
DEFINE_PULL_BACK(2)
DEFINE_PULL_BACK(3)

INLINE void pull_back(const int d, const Problem *problem, int side, int is_weighted, int32_t count,
                      const Point *point, float *rho, float *det, float cof[6][BLOCK],
                      float *folded_mass) {
    (d == 1   ? pull_back_1
     : d == 2 ? pull_back_2
              : pull_back_3)(problem, side, is_weighted, count, point, rho, det, cof, folded_mass);
}

/* Project values at the points of a block onto the splines: (2^(d-1), 2, count) to rows of
   taps, in 1D and 2D. */
INLINE void project_row(const int d, float part[4][2][BLOCK], int32_t count, float *const *sums,
                        int32_t start) {
    for (int k = 0; k < tap_row_count(d); k++) {
        if (!sums[k]) continue;
        float *to = sums[k] + start;
        for (int q = 0; q < 2; q++) {
            float total[BLOCK];
#pragma omp simd
            for (int32_t j = 0; j < count; j++) {
                total[j] = 0;
                for (int p = 0; p < leading_points(d); p++)
                    total[j] += (float)leading_weight(d, 0, 0, p, k) * part[p][q][j];
            }
            for (int l = 0; l < 3; l++)
#pragma omp simd
                for (int32_t j = 0; j < count; j++) to[j + l] += (float)W[0][q][l] * total[j];
        }
    }
}

/* `project_row` in 3D, axis by axis; each row of taps is updated once. */
INLINE void project_row_3d(float part[4][2][BLOCK], int32_t count, float *const *sums,
                           int32_t start) {
    float total[2][BLOCK + 4]; /* of both points of a cell, with two zeros at either end */
    for (int q = 0; q < 2; q++) {
        total[q][0] = total[q][1] = 0;
        total[q][count + 2] = total[q][count + 3] = 0;
    }
    for (int k = 0; k < 9; k++) {
        if (!sums[k]) continue;
        float *to = sums[k] + start;
        for (int q = 0; q < 2; q++) {
            const float w0 = (float)leading_weight(3, 0, 0, 0, k);
            const float w1 = (float)leading_weight(3, 0, 0, 1, k);
            const float w2 = (float)leading_weight(3, 0, 0, 2, k);
            const float w3 = (float)leading_weight(3, 0, 0, 3, k);
#pragma omp simd
            for (int32_t j = 0; j < count; j++)
                total[q][j + 2] = w0 * part[0][q][j] + w1 * part[1][q][j] + w2 * part[2][q][j] +
                                  w3 * part[3][q][j];
        }
#pragma omp simd
        for (int32_t j = 0; j < count + 2; j++)
            to[j] += (float)W[0][0][2] * total[0][j] + (float)W[0][0][1] * total[0][j + 1] +
                     (float)W[0][0][0] * total[0][j + 2] + (float)W[0][1][2] * total[1][j] +
                     (float)W[0][1][1] * total[1][j + 1] + (float)W[0][1][0] * total[1][j + 2];
    }
}

enum {
    MISMATCH,
    SOURCE_MASS,
    TARGET_MASS,
    KINETIC_ENERGY,
    DUAL_TERM,
    FOLDED_MASS,
    SOURCE_GROWTH,
    TARGET_GROWTH,
    INTEGRALS
};

/* Add the integrals over a block. */
INLINE void add_integrals(const int d, int p, int q, int32_t count, const Potential *potential,
                          float gradient[3][BLOCK], float rho[2][BLOCK], float folded_mass,
                          double share, double *integrals) {
    double mismatch = 0, source_mass = 0, target_mass = 0, energy = 0, dual_term = 0;
#pragma omp simd reduction(+ : mismatch, source_mass, target_mass, energy, dual_term)
    for (int32_t j = 0; j < count; j++) {
        const float difference = rho[1][j] - rho[0][j];
        float square = 0;
        for (int a = 0; a < d; a++) square += gradient[a][j] * gradient[a][j];
        mismatch += fabsf(difference);
        source_mass += rho[0][j];
        target_mass += rho[1][j];
        energy += (double)square * (rho[0][j] + rho[1][j]);
        dual_term += value_at(d, potential, p, q, j) * difference;
    }
    const double sums[SOURCE_GROWTH] = {mismatch, source_mass, target_mass,
                                        energy,   dual_term,   folded_mass};
    for (int k = 0; k < SOURCE_GROWTH; k++) integrals[k] += share * sums[k];
}

/* Evaluate the potential at one point of every cell of a block. */
INLINE void evaluate_point(const int d, const Problem *problem, const Potential *potential,
                           int32_t i, int32_t line, int32_t start, int p, int q, int32_t count,
                           Point *point) {
    evaluate_derivatives(d, potential, problem->step, p, q, count, point->gradient, point->hessian);
    for (int32_t j = 0; j < count; j++) {
        float at[3];
        half_cell_centre(d, i, line, start + j, p, q, at);
        for (int a = 0; a < d; a++) point->centre[a][j] = at[a];
    }
    if (problem->growth != BALANCED)
#pragma omp simd
        for (int32_t j = 0; j < count; j++)
            point->value[j] = (float)value_at(d, potential, p, q, j);
}

/* Store A at one point of the cells of a block, or its mean over the points. */
INLINE void store_weights(const int d, const Problem *problem, float cof[6][BLOCK], int32_t count,
                          float *weights, int point) {
    const int64_t cells = problem->grid.cells;
    double share = problem->weight / (1 << d);
    for (int a = 0; a < d; a++) share *= problem->step[a];
    int e = 0;
    for (int a = 0; a < d; a++)
        for (int b = a; b < d; b++, e++) {
            const float scale = (float)(share / (problem->step[a] * problem->step[b]));
            float *to = weights + (int64_t)(point * entries(d) + e) * cells;
#pragma omp simd
            for (int32_t j = 0; j < count; j++) to[j] = scale * cof[e][j];
        }
}

/* Add the integrals of (rho0 + rho1)/lambda over the half-cells of a block. */
INLINE void add_mass(const Problem *problem, double share, int32_t count, float rho[2][BLOCK],
                     float *mass) {
    const float scale = (float)(share * 2 / (problem->reach * problem->reach));
    for (int side = 0; side < 2; side++)
        for (int32_t j = 0; j < count; j++) mass[j] += rho[side][j] > 0 ? scale * rho[side][j] : 0;
}

/* One block of `geonet_newton_residual`. */
INLINE void residual_block(const int d, const Problem *problem, const double *const *taps,
                           float *const *sums, float *weights, float *mass, int32_t i, int32_t line,
                           int32_t start, int own, double *integrals) {
    const Grid *grid = &problem->grid;
    const int32_t n = grid->shape[2], count = n - start < BLOCK ? n - start : BLOCK;
    double share = 1.0 / (1 << d);
    Potential potential;
    Point point;
    float part[4][2][BLOCK], mean_cof[6][BLOCK], rho[2][BLOCK];
    for (int a = 0; a < d; a++) share *= problem->step[a];
    const float scale = (float)(share * problem->weight);
    memset(mean_cof, 0, sizeof mean_cof);
    memset(rho, 0, sizeof rho);
    if (mass && own) memset(mass + start, 0, sizeof(float) * (size_t)count);
    evaluate_potential(d, taps, start, count, &potential);
    for (int p = 0; p < leading_points(d); p++)
        for (int q = 0; q < 2; q++) {
            float cof[6][BLOCK], det[BLOCK], folded_mass = 0;
            memset(cof, 0, sizeof cof);
            evaluate_point(d, problem, &potential, i, line, start, p, q, count, &point);
            for (int side = problem->first_side; side < 2; side++)
                pull_back(d, problem, side, 1, count, &point, rho[side], det, cof, &folded_mass);
            for (int32_t j = 0; j < count; j++) part[p][q][j] = scale * (rho[1][j] - rho[0][j]);
            if (!own) continue;
            if (d == 3)
                for (int e = 0; e < entries(d); e++)
#pragma omp simd
                    for (int32_t j = 0; j < count; j++) mean_cof[e][j] += 0.125f * cof[e][j];
            else
                store_weights(d, problem, cof, count, weights + start, 2 * p + q);
            if (mass) add_mass(problem, share * problem->weight, count, rho, mass + start);
            add_integrals(d, p, q, count, &potential, point.gradient, rho, folded_mass, share,
                          integrals);
            for (int side = problem->first_side; side < 2 && problem->growth != BALANCED; side++)
                integrals[SOURCE_GROWTH + side] +=
                    share * sum_growth(d, problem, side, &point, count, rho[side]);
        }
    if (d == 3 && own) store_weights(d, problem, mean_cof, count, weights + start, 0);
    if (d == 3)
        project_row_3d(part, count, sums, start);
    else
        project_row(d, part, count, sums, start);
}

INLINE void residual_slab(const int d, const Problem *problem, const double *padded, float *summed,
                          float *weights, float *mass, int32_t from, int32_t to,
                          double *integrals) {
    const Grid *grid = &problem->grid;
    const int32_t n = grid->shape[2], axis = slab_axis(d), lines = d == 3 ? grid->shape[1] : 1;
    memset(summed + (int64_t)from * lines * (n + 2), 0,
           sizeof(float) * (size_t)((int64_t)(to - from) * lines * (n + 2)));
    for (int32_t place = from - 1; place <= last_overlap(grid, axis, from, to); place++) {
        const int32_t s = existing_index(grid, axis, place);
        if (s < 0) continue;
        for (int32_t line = 0; line < lines; line++) {
            const int32_t i = d == 3 ? s : 0, j = d == 3 ? line : s;
            int64_t rows[9];
            const double *taps[9];
            float *sums[9];
            tap_rows(d, grid, i, j, n + 2, rows);
            for (int k = 0; k < tap_row_count(d); k++) {
                taps[k] = padded + rows[k];
                sums[k] = in_slab(d, grid, rows[k] / (n + 2), from, to) ? summed + rows[k] : NULL;
            }
            const int64_t cell = ((int64_t)i * grid->shape[1] + j) * n;
            for (int32_t start = 0; start < n; start += BLOCK)
                residual_block(d, problem, taps, sums, weights + cell, mass ? mass + cell : NULL, i,
                               j, start, s >= from && s < to, integrals);
        }
    }
}

/* Evaluate the equation at a potential with coefficients (cells).

   residual: (cells), the integral of (rho1 - rho0) against every spline. weights: (weight_points,
   entries, cells), A = (mu0 cof(I - D2u/2) + mu1 cof(I + D2u/2))/2 at every point, in 3D its mean
   over the points of a cell, times the quadrature weight and scaled to cells. mass: (cells), the
   integral of (rho0 + rho1)/lambda over every cell; NULL if balanced. integrals: of
   |rho1 - rho0|, rho0, rho1, |grad u|^2 (rho0 + rho1), u (rho1 - rho0), the folded mass, and rho0
   and rho1 times (1/weight - 1), which is zero if balanced.
   padded: scratch, (rows, last + 2) doubles; summed: as many floats. */
void geonet_newton_residual(const Problem *problem, int32_t d, int32_t threads,
                            const double *coefficients, float *residual, float *weights,
                            float *mass, double *integrals, double *padded, float *summed) {
    const Grid *grid = &problem->grid;
    const int32_t size = grid->shape[slab_axis(d)];
    const int64_t lines = d == 3 ? grid->shape[1] : 1;
    double parts[MAX_THREADS][INTEGRALS] = {0};
    threads = threads > MAX_THREADS ? MAX_THREADS : threads;
    threads = threads > size ? size : threads;
    geonet_pad_rows(grid, coefficients, padded);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int part = 0; part < threads; part++) {
        const int32_t from = slab_begin(size, part, threads),
                      to = slab_begin(size, part + 1, threads);
        if (d == 1) residual_slab(1, problem, padded, summed, weights, mass, from, to, parts[part]);
        if (d == 2) residual_slab(2, problem, padded, summed, weights, mass, from, to, parts[part]);
        if (d == 3) residual_slab(3, problem, padded, summed, weights, mass, from, to, parts[part]);
        geonet_fold_rows(grid, from * lines, to * lines, summed, residual);
    }
    memset(integrals, 0, sizeof(double) * INTEGRALS);
    for (int part = 0; part < threads; part++)
        for (int k = 0; k < INTEGRALS; k++) integrals[k] += parts[part][k];
}

/* Sizes of the scratch memory of a thread of `geonet_newton_residual_batch`. */
INLINE int64_t weights_size(const int d, const Grid *grid) {
    return (int64_t)weight_points(d) * entries(d) * grid->cells;
}
INLINE int64_t padded_size(const Grid *grid) {
    return grid->cells / grid->shape[2] * (grid->shape[2] + 2);
}

/* trace A/d, averaged over each cell, (cells), from the weights of `geonet_newton_residual`. */
static void mean_weight(const int d, const Problem *problem, const float *weights, float *mean) {
    const int64_t cells = problem->grid.cells;
    double volume = 1;
    for (int a = 0; a < d; a++) volume *= problem->step[a];
    volume *= (double)weight_points(d) / (1 << d);
    memset(mean, 0, sizeof(float) * (size_t)cells);
    for (int point = 0; point < weight_points(d); point++)
        for (int a = 0; a < d; a++) {
            const float *plane = weights + (point * entries(d) + diagonal_entry(d, a)) * cells;
            const float scale = (float)(problem->step[a] * problem->step[a] / (d * volume));
#pragma omp simd
            for (int64_t i = 0; i < cells; i++) mean[i] += scale * plane[i];
        }
}

/* One pair of `geonet_newton_residual_batch`. */
static void evaluate_pair(const Problem *common, int32_t d, int32_t threads, int64_t k,
                          const double *coefficients, const float *source, const float *target,
                          float *residual, float *mean, double *integrals, float *floats,
                          double *doubles) {
    const int64_t cells = common->grid.cells;
    Problem problem = *common;
    problem.densities[0] = source + k * cells;
    problem.densities[1] = target + k * cells;
    geonet_newton_residual(&problem, d, threads, coefficients + k * cells, residual + k * cells,
                           floats, NULL, integrals + k * INTEGRALS, doubles,
                           floats + weights_size(d, &common->grid));
    mean_weight(d, &problem, floats, mean + k * cells);
}

/* `geonet_newton_residual` for many pairs on one grid, with mean weights instead of weights.

   coefficients, source, target, residual, mean: (pairs, cells) each; integrals: (pairs,
   INTEGRALS).
   Each thread has its own pairs. If there are fewer pairs than threads, all threads work on one
   pair after the other.
   floats: scratch, (threads or 1, weights_size + padded_size); doubles: (threads or 1,
   padded_size). */
void geonet_newton_residual_batch(const Problem *common, int32_t d, int32_t threads, int64_t pairs,
                                  const double *coefficients, const float *source,
                                  const float *target, float *residual, float *mean,
                                  double *integrals, float *floats, double *doubles) {
    const int64_t padded = padded_size(&common->grid),
                  own = weights_size(d, &common->grid) + padded;
    if (threads == 1 || pairs < threads) {
        for (int64_t k = 0; k < pairs; k++)
            evaluate_pair(common, d, threads, k, coefficients, source, target, residual, mean,
                          integrals, floats, doubles);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int part = 0; part < threads; part++)
        for (int64_t k = pairs * part / threads; k < pairs * (part + 1) / threads; k++)
            evaluate_pair(common, d, 1, k, coefficients, source, target, residual, mean, integrals,
                          floats + part * own, doubles + part * padded);
}

/* ---- frames */

/* Shift [centre - width/2, centre + width/2] into [0, n], or its begin if the axis is periodic; return
   the first cell that it overlaps. */
INLINE int32_t clip_interval(float centre, float width, int32_t n, int periodic, float *low,
                             float *high) {
    const float upper = (float)n - width;
    float from = centre - 0.5f * width;
    if (periodic)
        from = wrap_position(from, n);
    else {
        from = from < upper ? from : upper;
        from = from > 0 ? from : 0;
    }
    *low = from;
    *high = from + width < (float)n || periodic ? from + width : (float)n;
    const int32_t first = (int32_t)from;
    return first < n - 1 ? first : n - 1;
}

/* Width of a box in cells: at least MIN_WIDTH, and never less than rounding at position n. */
INLINE float resolved_width(float width, int32_t n) {
    const float rounding = (float)n * 0x1p-22f;
    const float smallest = rounding > MIN_WIDTH ? rounding : MIN_WIDTH;
    return width > smallest ? width : smallest;
}

/* `deposit` in 2D for boxes no wider than a cell, which is the common case: they overlap at
   most four cells. */
INLINE void deposit_small(const Grid *grid, const float *centre, const float *width, float mass,
                          float *frame) {
    int32_t at[2];
    float beyond[2];
    for (int a = 0; a < 2; a++) {
        const int32_t n = grid->shape[1 + a];
        const float w = resolved_width(width[a], n);
        float low, high;
        at[a] = clip_interval(centre[a], w, n, grid->periodic[1 + a], &low, &high);
        beyond[a] = (high - (float)(at[a] + 1)) / (high - low);
        beyond[a] = beyond[a] > 0 ? beyond[a] : 0;
    }
    const int32_t stride = grid->shape[2], right = neighbour_index(grid, 2, at[1] + 1) - at[1];
    float *row = frame + (int64_t)at[0] * stride + at[1];
    const float lower = mass * beyond[0], upper = mass - lower;
    row[0] += upper * (1 - beyond[1]);
    row[right] += upper * beyond[1];
    row += (int64_t)(neighbour_index(grid, 1, at[0] + 1) - at[0]) * stride;
    row[0] += lower * (1 - beyond[1]);
    row[right] += lower * beyond[1];
}

/* Distribute a mass evenly over a box of a frame. */
INLINE void deposit(const int d, const Grid *grid, const float *centre, const float *width,
                    float mass, float *frame) {
    if (d == 2 && width[0] <= 1 && width[1] <= 1) {
        deposit_small(grid, centre, width, mass, frame);
        return;
    }
    int32_t first[3] = {0, 0, 0};
    float low[3] = {0, 0, 0}, high[3] = {1, 1, 1};
    for (int a = 0; a < d; a++) {
        const int32_t n = grid->shape[3 - d + a];
        float w = resolved_width(width[a], n);
        w = w < (float)n ? w : (float)n;
        first[3 - d + a] = clip_interval(centre[a], w, n, grid->periodic[3 - d + a],
                                         &low[3 - d + a], &high[3 - d + a]);
    }
    mass /= (high[0] - low[0]) * (high[1] - low[1]) * (high[2] - low[2]);
    const int32_t *n = grid->shape;
    for (int32_t i = first[0]; (float)i < high[0]; i++) {
        const float a = fminf(high[0], (float)(i + 1)) - fmaxf(low[0], (float)i);
        for (int32_t j = first[1]; (float)j < high[1]; j++) {
            const float b = mass * a * (fminf(high[1], (float)(j + 1)) - fmaxf(low[1], (float)j));
            float *row = frame + ((int64_t)(i % n[0]) * n[1] + j % n[1]) * n[2];
            for (int32_t k = first[2]; (float)k < high[2]; k++)
                row[k % n[2]] += b * (fminf(high[2], (float)(k + 1)) - fmaxf(low[2], (float)k));
        }
    }
}

/* An error in D2u changes a density in inverse proportion to its determinant: weight by its
   square. */
INLINE float confidence(float det) { return det > 0 ? det * det : 0; }

/* The ways of the half-cells of a block: y + s G grad u at the fraction s + 1/2 of the way. */
typedef struct {
    float across[BLOCK], ratio[3][BLOCK]; /* G along grad u, and its diagonal; one without `wfr` */
    float share[BLOCK]; /* share of the mass that moves */
    float tangent[BLOCK]; /* of the angle of the cone: |grad u| over the reach */
    float root[BLOCK]; /* root of the ratio of both masses, exp(u/lambda) */
    float weights[2][BLOCK]; /* share of each density that has a partner */
} Ways;

/* In the Hellinger model all mass moves, unless the plan has less than a third of either density. The
   rest stays at its end. */
INLINE void evaluate_ways(const int d, const Problem *problem, const Point *point, int32_t count,
                          Ways *ways) {
    for (int32_t j = 0; j < count; j++) {
        ways->across[j] = ways->share[j] = 1;
        for (int a = 0; a < d; a++) ways->ratio[a][j] = 1;
    }
    if (problem->growth == BALANCED) return;
    for (int side = 0; side < 2; side++)
        evaluate_weights(d, problem, side, point, count, ways->weights[side]);
    if (problem->growth == HELLINGER) {
#pragma omp simd
        for (int32_t j = 0; j < count; j++) {
            const float first = ways->weights[0][j], second = ways->weights[1][j];
            const float share = 3 * (first < second ? first : second);
            ways->share[j] = share < 1 ? share : 1;
        }
        return;
    }
    const float inverse = (float)(1 / problem->reach), scale = 2 * inverse * inverse;
    Shortening shortening;
    evaluate_shortening(d, problem, point, count, &shortening);
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        float exponent = scale * point->value[j];
        exponent = exponent < MAX_EXPONENT ? exponent : MAX_EXPONENT;
        exponent = exponent > -MAX_EXPONENT ? exponent : -MAX_EXPONENT;
        ways->across[j] = shortening.across[j];
        ways->tangent[j] = inverse * sqrtf(shortening.square[j]);
        ways->root[j] = fast_exp(exponent);
    }
    for (int a = 0; a < d; a++)
#pragma omp simd
        for (int32_t j = 0; j < count; j++)
            ways->ratio[a][j] = shortened_entry(&shortening, point, a, j);
}

/* Masses of the half-cells of a block that move, at time t, and the fractions of their ways.

   Balanced: a weighted mean of both densities. Hellinger: both densities, cross-faded. Fisher-Rao:
   the geodesic of the cone, |1 - t + t root exp(i angle)|^2 times the first density; errors of both
   densities cancel in the sum of the parts with a partner, and do not change the way. With
   x = tan(angle) the fraction is atan(t root sin / (1 - t + t root cos)) / angle. */
INLINE void masses_at_time(int growth, float t, int32_t count, float rho[2][BLOCK],
                           float det[2][BLOCK], const Ways *ways, float *mass, float *fraction) {
    if (growth == BALANCED) {
#pragma omp simd
        for (int32_t j = 0; j < count; j++) {
            const float w0 = (1 - t) * confidence(det[0][j]), w1 = t * confidence(det[1][j]);
            const float sum = w0 + w1;
            mass[j] = sum > 0 ? (w0 * rho[0][j] + w1 * rho[1][j]) / sum : 0;
            fraction[j] = t;
        }
        return;
    }
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        const float first = rho[0][j] > 0 ? rho[0][j] : 0, second = rho[1][j] > 0 ? rho[1][j] : 0;
        mass[j] = ways->share[j] * ((1 - t) * first + t * second);
        fraction[j] = t;
    }
    if (growth == HELLINGER) return;
#pragma omp simd
    for (int32_t j = 0; j < count; j++) {
        const float first = rho[0][j] > 0 ? rho[0][j] : 0, second = rho[1][j] > 0 ? rho[1][j] : 0;
        const float matched = ways->weights[0][j] * first + ways->weights[1][j] * second;
        const float x = ways->tangent[j], b = t * ways->root[j];
        const float part = b / ((1 - t) * sqrtf(1 + x * x) + b);
        mass[j] = (1 - t) * (1 - t) * first + t * t * second + t * (1 - t) * matched;
        fraction[j] = part * fast_atan_ratio(part * x) / ways->across[j];
    }
}

/* Deposit the masses of the half-cells of a block that have covered fractions of their ways. */
INLINE void deposit_block(const int d, const Problem *problem, const Point *point, int32_t count,
                          const Ways *ways, const float *mass, const float *fraction,
                          const Grid *to, const float *scale, float *frame) {
    float centre[3][BLOCK], width[3][BLOCK];
    for (int a = 0; a < d; a++) {
        const float cells = scale[a] / (float)problem->step[a];
        const float *hessian = point->hessian[diagonal_entry(d, a)];
#pragma omp simd
        for (int32_t j = 0; j < count; j++) {
            const float s = fraction[j] - 0.5f;
            centre[a][j] = scale[a] * point->centre[a][j] +
                           cells * s * ways->across[j] * point->gradient[a][j];
            width[a][j] = scale[a] * (0.5f + 0.5f * s * ways->ratio[a][j] * hessian[j]);
        }
    }
    for (int32_t j = 0; j < count; j++) {
        if (!(mass[j] > 0)) continue;
        float own[3], size[3];
        for (int a = 0; a < d; a++) {
            own[a] = centre[a][j];
            size[a] = width[a][j];
        }
        deposit(d, to, own, size, mass[j], frame);
    }
}

/* Masses of the half-cells of a block that stay at one end, of which a part is left; return whether
   there are any. */
INLINE int masses_at_end(float position, float part, int32_t count, const float *rho,
                         const Ways *ways, float *mass, float *fraction) {
    float largest = 0;
#pragma omp simd reduction(max : largest)
    for (int32_t j = 0; j < count; j++) {
        mass[j] = (1 - ways->share[j]) * part * rho[j];
        fraction[j] = position + 0.5f;
        largest = mass[j] > largest ? mass[j] : largest;
    }
    return largest > 0;
}

/* Push a block of half-cells to every frame. */
INLINE void push_block(const int d, const Problem *problem, const double *const *taps, int32_t i,
                       int32_t line, int32_t start, const float *times, int32_t time_count,
                       const Grid *to, const float *scale, float *frames) {
    const Grid *grid = &problem->grid;
    const int32_t n = grid->shape[2], count = n - start < BLOCK ? n - start : BLOCK;
    Potential potential;
    Point point;
    Ways ways;
    evaluate_potential(d, taps, start, count, &potential);
    for (int p = 0; p < leading_points(d); p++)
        for (int q = 0; q < 2; q++) {
            float cof[6][BLOCK], rho[2][BLOCK], det[2][BLOCK], folded_mass = 0;
            float mass[BLOCK], fraction[BLOCK];
            memset(cof, 0, sizeof cof);
            evaluate_point(d, problem, &potential, i, line, start, p, q, count, &point);
            for (int side = 0; side < 2; side++)
                pull_back(d, problem, side, 0, count, &point, rho[side], det[side], cof,
                          &folded_mass);
            evaluate_ways(d, problem, &point, count, &ways);
            for (int32_t m = 0; m < time_count; m++) {
                const float t = times[m];
                float *frame = frames + m * to->cells;
                for (int part = 0; part < (problem->growth == HELLINGER ? 3 : 1); part++) {
                    if (part == 0)
                        masses_at_time(problem->growth, t, count, rho, det, &ways, mass, fraction);
                    else if (!masses_at_end((float)problem->positions[part - 1],
                                            part == 1 ? 1 - t : t, count, rho[part - 1], &ways,
                                            mass, fraction))
                        continue;
                    deposit_block(d, problem, &point, count, &ways, mass, fraction, to, scale,
                                  frame);
                }
            }
        }
}

INLINE void push_slab(const int d, const Problem *problem, const double *padded, int32_t from,
                      int32_t until, const float *times, int32_t time_count, const Grid *to,
                      const float *scale, float *frames) {
    const Grid *grid = &problem->grid;
    const int32_t n = grid->shape[2], lines = d == 3 ? grid->shape[1] : 1;
    for (int32_t s = from; s < until; s++)
        for (int32_t line = 0; line < lines; line++) {
            const int32_t i = d == 3 ? s : 0, j = d == 3 ? line : s;
            int64_t rows[9];
            const double *taps[9];
            tap_rows(d, grid, i, j, n + 2, rows);
            for (int k = 0; k < tap_row_count(d); k++) taps[k] = padded + rows[k];
            for (int32_t start = 0; start < n; start += BLOCK)
                push_block(d, problem, taps, i, j, start, times, time_count, to, scale, frames);
        }
}

/* Densities at times (time_count) on the cells of another grid of the same box, up to a
   factor.

   frames: (threads, time_count, cells of `to`), zero at first; their sum over threads is the
   result.
   scale: cells of `to` per cell of the potential, along each axis. padded: scratch as above. */
void geonet_push_frames(const Problem *problem, int32_t d, int32_t threads,
                        const double *coefficients, const float *times, int32_t time_count,
                        const Grid *to, const float *scale, float *frames, double *padded) {
    const int32_t size = problem->grid.shape[slab_axis(d)];
    geonet_pad_rows(&problem->grid, coefficients, padded);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int part = 0; part < threads; part++) {
        const int32_t from = slab_begin(size, part, threads),
                      until = slab_begin(size, part + 1, threads);
        float *own = frames + (int64_t)part * time_count * to->cells;
        if (d == 1) push_slab(1, problem, padded, from, until, times, time_count, to, scale, own);
        if (d == 2) push_slab(2, problem, padded, from, until, times, time_count, to, scale, own);
        if (d == 3) push_slab(3, problem, padded, from, until, times, time_count, to, scale, own);
    }
}

/* ---- the density of a barycenter */

/* Relative difference from the density between cell centres up to which a density is smooth. */
#define SMOOTH_DIFFERENCE 0.25f

/* `pull_back` for the density of a barycenter: where mu is smooth, it is interpolated linearly between
   cell centres; at jumps it stays constant in its cells. */
INLINE void pull_back_smoothly(const int d, const Problem *problem, int is_weighted, int32_t count,
                               const Point *point, float *rho, float *det) {
    float cof[6][BLOCK], smooth[BLOCK], folded_mass = 0;
    Problem wide = *problem;
    wide.min_width = 1;
    memset(cof, 0, sizeof cof);
    pull_back(d, problem, 1, is_weighted, count, point, rho, det, cof, &folded_mass);
    pull_back(d, &wide, 1, is_weighted, count, point, smooth, det, cof, &folded_mass);
    for (int32_t j = 0; j < count; j++)
        if (fabsf(smooth[j] - rho[j]) < SMOOTH_DIFFERENCE * smooth[j]) rho[j] = smooth[j];
}

/* One block of `geonet_barycenter_density`. */
INLINE void mean_block(const int d, const Problem *problems, int32_t fields, const double *padded,
                       const int64_t *rows, int32_t i, int32_t line, int32_t start, float *density,
                       double *mismatch) {
    const Grid *grid = &problems[0].grid;
    const int32_t n = grid->shape[2], count = n - start < BLOCK ? n - start : BLOCK;
    const int64_t padded_cells = padded_size(grid);
    const int is_balanced = problems[0].growth == BALANCED;
    float rho[fields][BLOCK], total[BLOCK], sum[BLOCK], mean[BLOCK];
    Potential potential;
    Point point;
    for (int32_t j = 0; j < count; j++) density[j] = 0;
    for (int p = 0; p < leading_points(d); p++)
        for (int q = 0; q < 2; q++) {
            for (int32_t j = 0; j < count; j++) total[j] = sum[j] = mean[j] = 0;
            for (int f = 0; f < fields; f++) {
                const Problem *problem = problems + f;
                const float weight = (float)problem->weight;
                const double *taps[9];
                float cof[6][BLOCK], det[BLOCK], carried[BLOCK], folded_mass = 0;
                memset(cof, 0, sizeof cof);
                for (int k = 0; k < tap_row_count(d); k++)
                    taps[k] = padded + f * padded_cells + rows[k];
                evaluate_potential(d, taps, start, count, &potential);
                evaluate_point(d, problem, &potential, i, line, start, p, q, count, &point);
                pull_back(d, problem, 1, 1, count, &point, rho[f], det, cof, &folded_mass);
                pull_back_smoothly(d, problem, 0, count, &point, carried, det);
                for (int32_t j = 0; j < count; j++) {
                    const float share = weight * (is_balanced ? confidence(det[j]) : 1);
                    mean[j] += weight * rho[f][j];
                    total[j] += is_balanced || carried[j] > 0 ? share * carried[j] : 0;
                    sum[j] += share;
                }
            }
            for (int f = 0; f < fields; f++)
                for (int32_t j = 0; j < count; j++)
                    *mismatch += problems[f].weight * fabsf(rho[f][j] - mean[j]);
            for (int32_t j = 0; j < count; j++) {
                const float value = sum[j] > 0 ? total[j] / sum[j] : 0;
                density[j] += value / (float)(2 * leading_points(d));
            }
        }
}

INLINE void mean_slab(const int d, const Problem *problems, int32_t fields, const double *padded,
                      int32_t from, int32_t until, float *density, double *mismatch) {
    const Grid *grid = &problems[0].grid;
    const int32_t n = grid->shape[2], lines = d == 3 ? grid->shape[1] : 1;
    for (int32_t s = from; s < until; s++)
        for (int32_t line = 0; line < lines; line++) {
            const int32_t i = d == 3 ? s : 0, j = d == 3 ? line : s;
            int64_t rows[9];
            tap_rows(d, grid, i, j, n + 2, rows);
            float *row = density + ((int64_t)i * grid->shape[1] + j) * n;
            for (int32_t start = 0; start < n; start += BLOCK)
                mean_block(d, problems, fields, padded, rows, i, j, start, row + start, mismatch);
        }
}

/* Weighted mean of the densities of a barycenter, pulled back by their potentials, as cell means.

   coefficients: (fields, cells). density: (cells). padded: scratch, (fields, rows, last + 2).
   Balanced densities are weighted by the squares of their determinants; with a reach the mean is that
   of the densities that are carried, without their weights. Returns sum_f w_f int |rho_f - rho|. */
double geonet_barycenter_density(const Problem *problems, int32_t d, int32_t fields,
                                 int32_t threads, const double *coefficients, float *density,
                                 double *padded) {
    const Grid *grid = &problems[0].grid;
    const int32_t size = grid->shape[slab_axis(d)];
    double parts[MAX_THREADS] = {0}, mismatch = 0, share = 1.0 / (1 << d);
    for (int a = 0; a < d; a++) share *= problems[0].step[a];
    threads = threads > MAX_THREADS ? MAX_THREADS : threads;
    threads = threads > size ? size : threads;
    for (int f = 0; f < fields; f++)
        geonet_pad_rows(grid, coefficients + f * grid->cells, padded + f * padded_size(grid));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int part = 0; part < threads; part++) {
        const int32_t from = slab_begin(size, part, threads),
                      until = slab_begin(size, part + 1, threads);
        if (d == 1) mean_slab(1, problems, fields, padded, from, until, density, &parts[part]);
        if (d == 2) mean_slab(2, problems, fields, padded, from, until, density, &parts[part]);
        if (d == 3) mean_slab(3, problems, fields, padded, from, until, density, &parts[part]);
    }
    for (int part = 0; part < threads; part++) mismatch += share * parts[part];
    return mismatch;
}

const int32_t geonet_newton_residual_abi[] = {VERSION, BLOCK, sizeof(Grid), sizeof(Problem)};
