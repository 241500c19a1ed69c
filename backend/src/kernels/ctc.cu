// Connectionist temporal classification (Graves et al., "Connectionist temporal classification: labelling unsegmented sequence
// data with recurrent neural networks", ICML 2006): loss[n] = -log of the sum over all alignments of target n, and its gradient.
//
// States s = 0 .. 2 S are the target with a blank before, between and after its labels. In logarithms,
//     alpha[t, s] = p[t, s] + (alpha[t-1, s] (+) alpha[t-1, s-1] (+) alpha[t-1, s-2] if s may be reached from there)
//     beta[t, s]  = (beta + p)[t+1, s] (+) (beta + p)[t+1, s+1] (+) (beta + p)[t+1, s+2] if that may be reached from s
// where p[t, s] is the log-probability of the state's label, and a label is reached over a blank that is left out if it differs
// from the label before. loss = -(alpha[T-1, last] (+) alpha[T-1, last-1]);
//     d loss / d log_probs[t, n, c] = -sum over the states of label c of exp(alpha[t, s] + beta[t, s] + loss)
// A loss of +inf (no alignment) has the gradient 0.
//
// generated  the host prepends: T, and one of CASE_LOSS, CASE_BACKWARD
// shapes     log_probs, dx: [T, N, C]; targets: [N, S] i64; input_lengths, target_lengths: [N] i64; loss, dy: [N];
//            workspaces: label [N, 3, 2 S + 1] i32; rows [N, 4, 2 S + 1] of Acc<T>, unused up to SHORT states; alpha
//            [N, T, 2 S + 1] of Acc<T>; all contiguous
// dtypes     T = f32 | f64 | f16 | bf16, all in Acc<T>, rounded once
// requires   T > 0, blank < C; dx holds zeros before. An input length is taken into [1, T]
// faults     a label outside [0, C), or a target length outside [0, S], is clamped and noted
// launch     a block of 256 threads for each n; two on a multiprocessor, since for more of them registers would spill
// bound      latency: T steps one after another, twice with the gradient

#define THREADS 256
#define SHORT 1024

typedef Acc<T> A;

struct Problem {
    u64 steps, batch, classes;
    u32 width, blank;  // width: 2 S + 1
};

DEV A log_sum(A a, A b, A c) {
    const A most = max_of(max_of(a, b), c);
    if (most == Limits<A>::lowest()) return most;
    return most + m_log(m_exp(a - most) + m_exp(b - most) + m_exp(c - most));
}

// One sequence. All threads of the block call its methods.
struct Sequence {
    const T* p;    // log-probabilities of step 0
    u64 stride;    // from step to step
    i64 steps;
    u32 states, blank;
    i32* label;
    A* rows;
    u32 row_stride;

    DEV A* row(u32 k) const { return rows + (u64)k * row_stride; }
    DEV A log_prob(i64 t, u32 s) const { return (A)load_value(p[t * stride + label[s]]); }
    DEV bool over_blank(u32 s) const { return s >= 2 && label[s] != (i32)blank && label[s] != label[s - 2]; }

    DEV void start(const T* log_probs, const i64* targets, const i64* input_lengths, const i64* target_lengths, i32* labels,
                   A* long_rows, A* shared, const Problem& q, FaultTable faults) {
        const u64 n = blockIdx.x;
        const i64 most = q.width / 2;
        p = log_probs + n * q.classes;
        stride = q.batch * q.classes;
        steps = input_lengths[n] < 1 ? 1 : input_lengths[n] > (i64)q.steps ? (i64)q.steps : input_lengths[n];
        states = 2 * (u32)checked_index(target_lengths[n], most + 1, faults) + 1;
        blank = q.blank;
        label = labels + 3 * n * q.width;
        rows = q.width <= SHORT ? shared : long_rows + 4 * n * q.width;
        row_stride = q.width <= SHORT ? SHORT : q.width;
        for (u32 s = threadIdx.x; s < states; s += THREADS)
            label[s] = s % 2 ? (i32)checked_index(targets[n * most + s / 2], q.classes, faults) : (i32)blank;
        __syncthreads();
    }

    // The loss; alpha's rows are kept in `table` if it is not null.
    DEV A loss(A* table, u32 width) const {
        const A none = Limits<A>::lowest();
        for (i64 t = 0; t < steps; ++t) {
            A* now = row(t % 2);
            const A* before = row((t + 1) % 2);
            for (u32 s = threadIdx.x; s < states; s += THREADS) {
                A x = none;
                if (t == 0) {
                    if (s < 2) x = log_prob(t, s);
                } else {
                    x = log_sum(before[s], s > 0 ? before[s - 1] : none, over_blank(s) ? before[s - 2] : none) + log_prob(t, s);
                }
                now[s] = x;
                if (table) table[t * width + s] = x;
            }
            __syncthreads();
        }
        const A* last = row((steps - 1) % 2);
        return -log_sum(last[states - 1], states > 1 ? last[states - 2] : none, none);
    }
};

#ifdef CASE_LOSS
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    ctc(T* loss, i32* label, A* rows, const T* log_probs, const i64* targets, const i64* input_lengths,
        const i64* target_lengths, const __grid_constant__ Problem q, FaultTable faults) {
    __shared__ A shared[4 * SHORT];
    Sequence x;
    x.start(log_probs, targets, input_lengths, target_lengths, label, rows, shared, q, faults);
    const A y = x.loss(nullptr, q.width);
    if (threadIdx.x == 0) loss[blockIdx.x] = cast<T>(y);
}
#endif

#ifdef CASE_BACKWARD
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    ctc(T* dx, i32* label, A* rows, A* alpha, const T* log_probs, const i64* targets, const i64* input_lengths,
        const i64* target_lengths, const T* dy, const __grid_constant__ Problem q, FaultTable faults) {
    __shared__ A shared[4 * SHORT];
    __shared__ A partial[32];
    const A none = Limits<A>::lowest();
    Sequence x;
    x.start(log_probs, targets, input_lengths, target_lengths, label, rows, shared, q, faults);
    // States of one label are a list in their order: `next` (0: none), which the first of them begins.
    i32 *next = x.label + q.width, *begins = next + q.width;
    for (u32 s = 1 + 2 * threadIdx.x; s < x.states; s += 2 * THREADS) {
        const i32 own = x.label[s];
        u32 after = s + 2, before = 1;
        while (after < x.states && x.label[after] != own) after += 2;
        while (before < s && x.label[before] != own) before += 2;
        next[s] = after < x.states ? (i32)after : 0;
        begins[s] = before == s && own != (i32)q.blank;
    }
    alpha += (u64)blockIdx.x * q.steps * q.width;
    const A loss = x.loss(alpha, q.width);
    const bool aligned = loss != Limits<A>::highest();
    const A scale = -(A)load_value(dy[blockIdx.x]);
    __syncthreads();  // alpha's last rows have been read
    for (i64 t = x.steps - 1; t >= 0; --t) {
        A *now = x.row(t % 2), *share = x.row(2 + t % 2);
        const A* later = x.row((t + 1) % 2);
        A blanks = 0;
        for (u32 s = threadIdx.x; s < x.states; s += THREADS) {
            A beta;
            if (t == x.steps - 1) {
                beta = s + 2 >= x.states ? (A)0 : none;
            } else {
                beta = log_sum(later[s], s + 1 < x.states ? later[s + 1] : none,
                               s + 2 < x.states && x.over_blank(s + 2) ? later[s + 2] : none);
            }
            const A part = aligned ? m_exp(alpha[t * q.width + s] + beta + loss) : (A)0;
            now[s] = beta + x.log_prob(t, s);
            share[s] = part;
            if (x.label[s] == (i32)q.blank) blanks += part;
        }
        // Every thread's shares are there after it: it waits for all of them.
        blanks = block_reduce(blanks, (A)0, partial, [](A a, A b) { return a + b; });
        T* to = dx + (t * q.batch + blockIdx.x) * q.classes;
        if (threadIdx.x == 0) to[q.blank] = cast<T>(scale * blanks);
        for (u32 s = 1 + 2 * threadIdx.x; s < x.states; s += 2 * THREADS) {
            if (!begins[s]) continue;
            A sum = share[s];
            for (i32 k = next[s]; k; k = next[k]) sum += share[k];
            to[x.label[s]] = cast<T>(scale * sum);
        }
    }
}
#endif
