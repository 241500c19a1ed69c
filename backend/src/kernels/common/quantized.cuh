// Stored quantised values: B bits each (8 | 4 | 2), packed into u32, the first in the lowest bits.

// The value at bit B * k of a word, with its sign.
template <int B>
DEV i32 unpacked(u32 word, int k) {
    return (i32)(word << (32 - B - B * k)) >> (32 - B);
}

// The stored value `at`, an unsigned number: divisions by powers of two are then shifts.
template <int B, typename Offset>
DEV i32 value_at(const u32* words, Offset at) {
    const u32 per_word = 32 / B;
    return unpacked<B>(words[at / per_word], (int)(at % per_word));
}

// Which scale a stored value has: one for each `size` neighbours, or one for all when size is 0. 32-bit offsets come with
// sizes below 2^31.
struct Groups {
    u64 size;
    FastDiv size32;
};
DEV u32 group_of(u32 at, Groups groups) { return groups.size == 0 ? 0 : groups.size32.div(at); }
DEV u64 group_of(u64 at, Groups groups) { return groups.size == 0 ? 0 : at / groups.size; }
