// One step of the filter (or of momentum) over a list of tensors, in one pass over memory.
//
// A tensor is cut into tiles that fit the first-level cache. Arrays in the dtype to compute in are
// updated in place; all others are converted into a buffer and back. The arithmetic has the order
// of sgdf/filter.py and is compiled without contraction to FMA: work.py says which results
// have the bits of the torch loop.
//
// Without torch's headers this compiles in seconds, and one binary serves all versions of torch.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace {

constexpr int TILE = 1024;                // elements; five buffers of doubles are 40 KiB
constexpr int BLOCK = 256;                // quantized.BLOCK
constexpr std::int64_t PIECE = 32 * TILE; // elements of a unit of work for one thread

enum Dtype { F32, F64, BF16, F16, I8, U8 }; // cpu.DTYPES
enum Kind { MOMENTUM, FILTER, ESTIMATE };         // cpu.py; ESTIMATE: g^ instead of p
enum Second { NONE, SEPARATE, FROM_M_AND_S };     // cpu.SECOND
enum Gain { K, ROOT_OF_K, POWER_OF_K, CONSTANT };

// rounding.py
constexpr std::uint32_t GOLDEN = 0x9E3779B9u;
constexpr std::uint32_t FOR_PARAMETER = 0x85EBCA6Bu, FOR_ODD = 0x9E3779B1u;
constexpr std::uint32_t FOR_MOMENT[3] = {1, 0xC2B2AE35u, 0x27D4EB2Fu}; // m, s, v

struct Row { // as cpu.py packs it
    std::uint64_t p, g, moment[3], scale[3]; // m, s, v; 0 for one that is not kept
    std::uint64_t numel;
    std::uint64_t length; // of a row of the tensor, for the blocks of 8-bit moments; else 0
    std::uint64_t dtypes; // of p, g and the moments, four bits each
    std::uint64_t key;    // rounding.step_key

    Dtype dtype(int column) const { return Dtype(dtypes >> (4 * column) & 15); }
};

struct Corrections { // filter.Corrections, 1 - b2^t for a separate v, filter.SecondMomentWeights
    double trend, fluctuation, second, of_m, of_s;
};

struct Settings { // of one type: for cpu.py the struct is an array
    double lr, beta1, beta2, gain_eps, adam_eps, weight_decay, gain_scale, gain_power, grad_scale;
    double second;                          // enum Second
    double decoupled, maximize, stochastic; // 0 or 1
};

template <class To, class From> inline To bits(From x) {
    static_assert(sizeof(To) == sizeof(From), "");
    To y;
    std::memcpy(&y, &x, sizeof y);
    return y;
}

// --- dtypes ----------------------------------------------------------------------------------

inline float from_bfloat16(std::uint16_t x) { return bits<float>(std::uint32_t(x) << 16); }

inline std::uint16_t to_bfloat16(float x) {
    std::uint32_t b = bits<std::uint32_t>(x);
    return x == x ? std::uint16_t((b + 0x7FFFu + (b >> 16 & 1)) >> 16) : std::uint16_t(0x7FC0);
}

inline std::uint16_t to_bfloat16(float x, std::uint32_t random) {
    std::uint32_t b = bits<std::uint32_t>(x);
    bool finite = (b & 0x7F800000u) != 0x7F800000u;
    return finite ? std::uint16_t((b + (random >> 16)) >> 16) : to_bfloat16(x);
}

// Half precision by integer arithmetic, as in Maratyszcza's FP16: it vectorises on every
// processor.
inline float from_float16(std::uint16_t x) {
    std::uint32_t w = std::uint32_t(x) << 16, sign = w & 0x80000000u, twice = w + w;
    float normal = bits<float>((twice >> 4) + (0xE0u << 23)) * 0x1p-112f;
    float subnormal = bits<float>(twice >> 17 | 126u << 23) - 0.5f;
    return bits<float>(sign | bits<std::uint32_t>(twice < 1u << 27 ? subnormal : normal));
}

inline std::uint16_t to_float16(float x) {
    std::uint32_t w = bits<std::uint32_t>(x), twice = w + w;
    float base = std::fabs(x) * 0x1p+112f * 0x1p-110f;
    std::uint32_t bias = std::max(twice & 0xFF000000u, 0x71000000u);
    std::uint32_t b = bits<std::uint32_t>(bits<float>((bias >> 1) + 0x07800000u) + base);
    std::uint32_t magnitude = (b >> 13 & 0x7C00u) + (b & 0xFFFu);
    return std::uint16_t((w >> 16 & 0x8000u) | (twice > 0xFF000000u ? 0x7E00u : magnitude));
}

// --- random bits and 8-bit moments -----------------------------------------------------------

// `start` is even. One draw serves two neighbours; `out` has room for an even number.
void random_bits(std::uint32_t *out, std::int64_t start, int n, std::uint32_t key,
                 std::uint32_t purpose) {
    const std::uint32_t first = std::uint32_t(start / 2) * GOLDEN;
    const std::uint32_t even = 0x846CA68Bu * purpose, odd = even * FOR_ODD;
    for (int i = 0; i < (n + 1) / 2; i++) {
        std::uint32_t x = (first + std::uint32_t(i) * GOLDEN) ^ key;
        x = (x ^ x >> 16) * 0x7FEB352Du;
        x ^= x >> 15;
        out[2 * i] = x * even;
        out[2 * i + 1] = x * odd;
    }
}

// quantized.py: a code is the leading bits of t + FLOOR, less those of FLOOR, which are ZERO.
constexpr int DROPPED = 20;
constexpr float SMALLEST = 0x1p-126f; // of the normal numbers: a block of zeros divides by it

template <class Code> struct Format {
    static constexpr bool SIGNED = std::is_signed<Code>::value;
    static constexpr float FLOOR = SIGNED ? 0x1p-15f : 0x1p-31f;
    static constexpr std::int32_t ZERO = (SIGNED ? 127 - 15 : 127 - 31) << (23 - DROPPED);
};

template <class T, class Code>
void dequantize(const Code *__restrict codes, float scale, int n, T *__restrict out) {
    using F = Format<Code>;
    for (int i = 0; i < n; i++) {
        std::int32_t c = codes[i];
        float t = bits<float>(((c < 0 ? -c : c) + F::ZERO) << DROPPED) - F::FLOOR;
        out[i] = T((c < 0 ? -t : t) * scale);
    }
}

template <class T, class Code>
void quantize(const T *__restrict x, int n, const std::uint32_t *__restrict random,
              Code *__restrict codes, float *scale) {
    using F = Format<Code>;
    std::uint32_t most = 0; // without its sign a float is ordered as an integer, NaN above all
    for (int i = 0; i < n; i++)
        most = std::max(most, bits<std::uint32_t>(float(x[i])) << 1);
    const float largest = bits<float>(most >> 1);
    const float inverse = 1 / (largest < SMALLEST ? SMALLEST : largest);
    *scale = largest;
    for (int i = 0; i < n; i++) {
        float t = std::fabs(float(x[i])) * inverse + F::FLOOR;
        std::uint32_t carry = random[i] >> (32 - DROPPED);
        std::int32_t c = std::int32_t(bits<std::uint32_t>(t) + carry) >> DROPPED;
        codes[i] = Code(x[i] < 0 ? F::ZERO - c : c - F::ZERO);
    }
}

// --- tiles -----------------------------------------------------------------------------------

template <class T> struct Tile {
    std::int64_t index, start;
    int n;
};

// The tile in T: in place if it is stored in T, else in the buffer.
template <class T>
T *load(Dtype dtype, std::uint64_t address, std::uint64_t scale, const Tile<T> &tile, T *buffer) {
    auto convert = [&](auto *stored, auto value) {
        auto *__restrict from = stored + tile.start;
        T *__restrict to = buffer;
        for (int i = 0; i < tile.n; i++)
            to[i] = T(value(from[i]));
        return buffer;
    };
    auto plain = [](auto x) { return x; };
    switch (dtype) {
    case F32:
        if constexpr (std::is_same<T, float>::value)
            return reinterpret_cast<float *>(address) + tile.start;
        else
            return convert(reinterpret_cast<float *>(address), plain);
    case F64:
        if constexpr (std::is_same<T, double>::value)
            return reinterpret_cast<double *>(address) + tile.start;
        else
            return convert(reinterpret_cast<double *>(address), plain);
    case BF16:
        return convert(reinterpret_cast<std::uint16_t *>(address),
                       [](std::uint16_t x) { return from_bfloat16(x); });
    case F16:
        return convert(reinterpret_cast<std::uint16_t *>(address),
                       [](std::uint16_t x) { return from_float16(x); });
    case I8:
        dequantize(reinterpret_cast<std::int8_t *>(address) + tile.start,
                   reinterpret_cast<float *>(scale)[tile.index], tile.n, buffer);
        break;
    case U8:
        dequantize(reinterpret_cast<std::uint8_t *>(address) + tile.start,
                   reinterpret_cast<float *>(scale)[tile.index], tile.n, buffer);
    }
    return buffer;
}

template <class T>
void store(Dtype dtype, std::uint64_t address, std::uint64_t scale, const Tile<T> &tile,
           const T *computed, const std::uint32_t *random) {
    auto convert = [&](auto *stored, auto value) {
        auto *__restrict to = stored + tile.start;
        const T *__restrict from = computed;
        for (int i = 0; i < tile.n; i++)
            to[i] = value(from[i]);
    };
    switch (dtype) {
    case F32:
        if (!std::is_same<T, float>::value)
            convert(reinterpret_cast<float *>(address), [](T x) { return float(x); });
        break;
    case F64:
        if (!std::is_same<T, double>::value)
            convert(reinterpret_cast<double *>(address), [](T x) { return double(x); });
        break;
    case BF16: {
        auto *__restrict to = reinterpret_cast<std::uint16_t *>(address) + tile.start;
        for (int i = 0; i < tile.n; i++)
            to[i] = random ? to_bfloat16(float(computed[i]), random[i])
                           : to_bfloat16(float(computed[i]));
        break;
    }
    case F16:
        convert(reinterpret_cast<std::uint16_t *>(address),
                [](T x) { return to_float16(float(x)); });
        break;
    case I8:
        quantize(computed, tile.n, random,
                 reinterpret_cast<std::int8_t *>(address) + tile.start,
                 reinterpret_cast<float *>(scale) + tile.index);
        break;
    case U8:
        quantize(computed, tile.n, random,
                 reinterpret_cast<std::uint8_t *>(address) + tile.start,
                 reinterpret_cast<float *>(scale) + tile.index);
    }
}

// --- the step --------------------------------------------------------------------------------

// filter.largest_gradient is this times sqrt(1 - b2).
template <class T> constexpr double LARGEST = std::is_same<T, float>::value ? 0x1p60 : 0x1p508;

template <class T> struct Scalars {
    T lr, shrink, decay, beta1, rest1, beta2, rest2, gain_eps, adam_eps, gain_scale, gain_power;
    T trend, fluctuation, second, of_m, of_s, largest;
    T largest_update = T(10); // filter.LARGEST_8_BIT_UPDATE

    Scalars(const Settings &o, const Corrections &c)
        : lr(T(o.lr)), shrink(T(o.decoupled ? 1 - o.lr * o.weight_decay : 1)),
          decay(T(o.weight_decay)), beta1(T(o.beta1)), rest1(T(1 - o.beta1)),
          beta2(T(o.beta2)), rest2(T(1 - o.beta2)),
          gain_eps(T(std::max(o.gain_eps, double(std::numeric_limits<T>::min())))),
          adam_eps(T(o.adam_eps)), gain_scale(T(o.gain_scale)), gain_power(T(o.gain_power)),
          trend(T(c.trend)), fluctuation(T(c.fluctuation)), second(T(c.second)),
          of_m(T(c.of_m)), of_s(T(c.of_s)),
          largest(T(LARGEST<T> * std::sqrt(1 - o.beta2))) {}
};

// filter.wiener_filter and the update of p; in an ESTIMATE, p is the gradient and becomes g^.
// Weight decay in the gradient is a separate case, because 0 times an infinite weight is not 0; in
// a separate loop it would cost a fifth of the step.
template <class T, Kind kind, Second second, Gain gain_kind, bool coupled, bool in_8_bits>
void filter(const Scalars<T> &scalars, int n, T *__restrict ps, const T *__restrict gs,
            T *__restrict ms, T *__restrict ss, T *__restrict vs) {
    const Scalars<T> k = scalars; // a copy no store can alias
    constexpr bool keeps_s = gain_kind != CONSTANT || second == FROM_M_AND_S;
    for (int i = 0; i < n; i++) {
        T g = kind == ESTIMATE ? ps[i] : coupled ? gs[i] + k.decay * ps[i] : gs[i];
        if constexpr (second == NONE) // filter.without_overflow; NaN stays NaN
            g = std::fabs(g) > k.largest ? ms[i] : g;
        else
            g = g > k.largest ? k.largest : g < -k.largest ? -k.largest : g;
        T m = k.beta1 * ms[i] + k.rest1 * g, s = 0;
        ms[i] = m;
        if constexpr (keeps_s) {
            s = k.beta2 * ss[i] + k.rest2 * (g - m) * (g - m);
            ss[i] = s;
        }
        T m_hat = m / k.trend;
        T residual = g - m_hat;
        T update;
        if constexpr (gain_kind == CONSTANT) {
            update = m_hat + k.gain_scale * residual;
        } else {
            T s_hat = s * k.fluctuation;
            T gain = s_hat / (s_hat + residual * residual + k.gain_eps);
            if (gain_kind == ROOT_OF_K)
                gain = std::sqrt(gain);
            if (gain_kind == POWER_OF_K)
                gain = std::pow(gain, k.gain_power);
            update = m_hat + k.gain_scale * gain * residual;
        }
        if constexpr (second == SEPARATE) {
            T v = k.beta2 * vs[i] + k.rest2 * g * g;
            vs[i] = v;
            update = update / (std::sqrt(v / k.second) + k.adam_eps);
        }
        if constexpr (second == FROM_M_AND_S)
            update = update / (std::sqrt(k.of_m * m * m + k.of_s * s) + k.adam_eps);
        if constexpr (in_8_bits && second != NONE)
            update = update > k.largest_update    ? k.largest_update
                     : update < -k.largest_update ? -k.largest_update
                                                  : update;
        ps[i] = kind == ESTIMATE ? update : k.shrink * ps[i] - k.lr * update;
    }
}

template <class T>
using Step = void (*)(const Scalars<T> &, int, T *, const T *, T *, T *, T *);

template <class T, Kind kind, Second second, bool coupled, bool in_8_bits>
Step<T> with_gain(double power) {
    return power == 1     ? filter<T, kind, second, K, coupled, in_8_bits>
           : power == 0.5 ? filter<T, kind, second, ROOT_OF_K, coupled, in_8_bits>
           : power == 0   ? filter<T, kind, second, CONSTANT, coupled, in_8_bits>
                          : filter<T, kind, second, POWER_OF_K, coupled, in_8_bits>;
}

template <class T, bool coupled, bool in_8_bits> Step<T> divided(const Settings &o) {
    return o.second == SEPARATE
               ? with_gain<T, FILTER, SEPARATE, coupled, in_8_bits>(o.gain_power)
               : with_gain<T, FILTER, FROM_M_AND_S, coupled, in_8_bits>(o.gain_power);
}

template <class T, bool coupled> Step<T> chosen(Kind kind, const Settings &o, bool in_8_bits) {
    if (kind == ESTIMATE)
        return with_gain<T, ESTIMATE, NONE, false, false>(o.gain_power);
    if (o.second == NONE)
        return with_gain<T, FILTER, NONE, coupled, false>(o.gain_power);
    return in_8_bits ? divided<T, coupled, true>(o) : divided<T, coupled, false>(o);
}

template <class T, bool coupled>
void momentum(const Scalars<T> &scalars, int n, T *__restrict ps, const T *__restrict gs,
              T *__restrict ms) {
    // beta1 is beta and gain_scale is mu.
    const T beta = scalars.beta1, mu = scalars.gain_scale, shrink = scalars.shrink;
    const T lr = scalars.lr, decay = scalars.decay;
    for (int i = 0; i < n; i++) {
        T g = coupled ? gs[i] + decay * ps[i] : gs[i];
        T m = beta * ms[i] + mu * g;
        ms[i] = m;
        ps[i] = shrink * ps[i] - lr * m;
    }
}

// The gradient unscaled and with its sign. Never written in place.
template <class T> const T *gradient(const Settings &o, int n, const T *g, T *buffer) {
    if (o.grad_scale != 1) {
        const T scale = T(o.grad_scale);
        for (int i = 0; i < n; i++)
            buffer[i] = g[i] / scale;
        g = buffer;
    }
    if (o.maximize) {
        for (int i = 0; i < n; i++)
            buffer[i] = -g[i];
        g = buffer;
    }
    return g;
}

template <class T>
void step(const Row &row, const Corrections &corrections, const Settings &o, Kind kind,
          std::int64_t first, std::int64_t last) {
    alignas(64) T p_buffer[TILE], g_buffer[TILE], buffers[3][TILE];
    const Scalars<T> scalars(o, corrections);
    const std::int64_t numel = std::int64_t(row.numel);
    const std::int64_t length = row.length ? std::int64_t(row.length) : numel;
    const int size = row.length ? BLOCK : TILE;
    const std::int64_t per_row = (length + size - 1) / size;
    const bool coupled = o.weight_decay != 0 && !o.decoupled;
    const bool in_8_bits = row.length != 0;
    const Step<T> filter_step =
        coupled ? chosen<T, true>(kind, o, in_8_bits) : chosen<T, false>(kind, o, in_8_bits);
    const std::uint32_t key = std::uint32_t(row.key);

    Tile<T> tile;
    for (tile.index = first; tile.index < last; tile.index++) {
        const std::int64_t within = tile.index % per_row * size;
        tile.start = tile.index / per_row * length + within;
        tile.n = int(std::min<std::int64_t>(size, length - within));

        T *p = load(row.dtype(0), row.p, 0, tile, p_buffer);
        const T *g = nullptr;
        if (kind != ESTIMATE)
            g = gradient(o, tile.n, load(row.dtype(1), row.g, 0, tile, g_buffer), g_buffer);
        T *x[3] = {nullptr, nullptr, nullptr};
        for (int j = 0; j < 3; j++)
            if (row.moment[j])
                x[j] = load(row.dtype(2 + j), row.moment[j], row.scale[j], tile, buffers[j]);

        if (kind == MOMENTUM)
            (coupled ? momentum<T, true> : momentum<T, false>)(scalars, tile.n, p, g, x[0]);
        else
            filter_step(scalars, tile.n, p, g, x[0], x[1], x[2]);

        std::uint32_t random[TILE];
        const std::int64_t at = tile.index * size; // quantized.padded_index of its first element
        for (int j = 0; j < 3; j++) {
            if (!x[j])
                continue;
            const Dtype dtype = row.dtype(2 + j);
            const bool at_random = dtype >= I8 || (dtype == BF16 && kind != MOMENTUM);
            if (at_random)
                random_bits(random, at, tile.n, key, FOR_MOMENT[j]);
            store(dtype, row.moment[j], row.scale[j], tile, x[j], at_random ? random : nullptr);
        }
        const bool at_random = o.stochastic && row.dtype(0) == BF16;
        if (at_random)
            random_bits(random, at, tile.n, key, FOR_PARAMETER);
        store(row.dtype(0), row.p, 0, tile, p, at_random ? random : nullptr);
    }
}

struct Piece {
    std::int64_t row, first, last; // tiles
};

struct Averages { // for cpu.py the struct is an array
    double beta, slow_beta, slow_weight, largest, sign, trend, gain;
};

} // namespace

// What stands before the products of a matrix step, in one pass: kernels/matrix.py. Updates the
// averages and writes either the gradient with the trend, or the estimate with a constant gain.
extern "C" void sgdf_average(std::int64_t n, const float *__restrict g, float *__restrict m,
                             float *__restrict slow, float *__restrict clipped,
                             float *__restrict out, const Averages *o, int threads) {
    const float of_new = float(1 - o->beta), of_new_in_slow = float(1 - o->slow_beta);
    const float weight = float(o->slow_weight), largest = float(o->largest);
    const float sign = float(o->sign), trend = float(o->trend), gain = float(o->gain);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && n > PIECE)
    for (std::int64_t first = 0; first < n; first += TILE) {
        const std::int64_t last = std::min(first + TILE, n);
        for (std::int64_t i = first; i < last; i++) {
            const float x = sign * std::min(std::max(g[i], -largest), largest); // NaN stays
            float mean = m[i] += of_new * (x - m[i]);
            if (slow)
                mean += weight * ((slow[i] += of_new_in_slow * (x - slow[i])) - mean);
            if (clipped) {
                clipped[i] = x;
            } else {
                mean /= trend;
                mean += gain * (x - mean);
            }
            out[i] = mean;
        }
    }
}

// What stands behind them: the step with decoupled weight decay.
extern "C" void sgdf_descend(std::int64_t n, float *__restrict p, const float *__restrict update,
                             double shrink, double rate, int threads) {
    const float keep = float(shrink), lr = float(rate);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && n > PIECE)
    for (std::int64_t first = 0; first < n; first += TILE) {
        const std::int64_t last = std::min(first + TILE, n);
        for (std::int64_t i = first; i < last; i++)
            p[i] = keep * p[i] - lr * update[i];
    }
}

extern "C" void sgdf_step(int kind, std::int64_t count, const Row *rows,
                          const Corrections *corrections, const Settings *settings,
                          int threads) {
    std::vector<Piece> pieces;
    std::int64_t total = 0;
    for (std::int64_t i = 0; i < count; i++) {
        const std::int64_t numel = std::int64_t(rows[i].numel);
        const std::int64_t length = rows[i].length ? std::int64_t(rows[i].length) : numel;
        if (numel == 0)
            continue;
        const std::int64_t size = rows[i].length ? BLOCK : TILE;
        const std::int64_t tiles = numel / length * ((length + size - 1) / size);
        for (std::int64_t first = 0; first < tiles; first += PIECE / size)
            pieces.push_back({i, first, std::min(first + PIECE / size, tiles)});
        total += numel;
    }
    if (total <= PIECE) // waking other threads takes longer than the work
        threads = 1;
    const std::int64_t n = std::int64_t(pieces.size());
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (std::int64_t j = 0; j < n; j++) {
        const Piece &piece = pieces[j];
        const Row &row = rows[piece.row];
        // work.compute_dtype
        (row.dtype(0) == F64 ? step<double> : step<float>)(row, corrections[piece.row], *settings,
                                                          Kind(kind), piece.first, piece.last);
    }
}
