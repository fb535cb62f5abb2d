// Runs a compiled kernel: two passes over memory between guards, which must agree.
//
// A request comes on standard input, the answer goes to standard output. What a kernel does wrong
// ends the program with status 3 and a line on standard error.
#include "lanes.h"

namespace {

constexpr uint threadgroup_limit = 32 * 1024;  // bytes

template <typename T>
T get() {
    T value;
    if (fread(&value, sizeof value, 1, stdin) != 1) stop("the request is cut off");
    return value;
}

uint3 get_size() {
    int x = get<int>(), y = get<int>(), z = get<int>();
    return uint3(x, y, z);
}

// Bytes of an argument that are in the request, and in the answer if it is written to.
struct Piece {
    long at;
    std::vector<char> bytes;
};

struct Argument {
    char name[64];
    long size;
    bool written;
    std::vector<Piece> pieces;  // none of an output, which is in the answer as a whole
};

Argument get_argument() {
    Argument argument;
    if (fread(argument.name, sizeof argument.name, 1, stdin) != 1) stop("the request is cut off");
    argument.size = get<long>();
    argument.written = get<int>();
    argument.pieces.resize(get<int>());
    for (Piece& piece : argument.pieces) {
        piece.at = get<long>();
        piece.bytes.resize(get<long>());
        if (!piece.bytes.empty() && fread(piece.bytes.data(), piece.bytes.size(), 1, stdin) != 1)
            stop("the request is cut off");
    }
    if (argument.pieces.empty()) argument.pieces.push_back({0, {}});
    return argument;
}

// Memory of an argument, filled: what is not given of an input is zero.
size_t lay_out(const Argument& argument) {
    size_t index = map(argument.name, argument.size);
    Region& r = regions[index];
    if (!r.size) return index;
    fill_slack(r);
    for (const Piece& piece : argument.pieces) {
        if (piece.bytes.empty())
            memset(r.data, 0xFF, r.size);
        else
            memcpy(r.data + piece.at, piece.bytes.data(), piece.bytes.size());
    }
    if (!argument.written) mprotect(r.base + guard, r.room - 2 * guard, PROT_READ);
    return index;
}

}  // namespace

namespace runner {

const Lane& lane() { return current->self; }
uint3 threadgroup_position() { return group; }
uint3 threadgroup_size() { return group_size; }
uint3 threadgroups() { return groups; }

void wait_for_group(Place place) { yield(State::at_barrier, place); }

const void* share(const void* value, uint size, Place place) {
    Simdgroup& simdgroup = simdgroups[current->self.simdgroup];
    // Those that are quick may begin the next operation while others read this one's values.
    char* shared = simdgroup.shared[current->turn++ & 1];
    memcpy(shared + current->self.lane * size, value, size);
    yield(State::at_simdgroup, place);
    return shared;
}

void* guarded(const char* name, uint size) {
    for (size_t tile : tiles)
        if (!strcmp(regions[tile].name, name)) return regions[tile].data;
    uint taken = rounded(size, 16);
    for (size_t tile : tiles) taken += rounded(regions[tile].size, 16);
    if (taken > threadgroup_limit)
        stop("takes %u bytes of threadgroup memory; there are %u", taken, threadgroup_limit);
    tiles.push_back(map(name, size));
    const Region& r = regions[tiles.back()];
    fill_slack(r);
    spoil(r);
    return r.data;
}

void fail(const char* what, Place place) { stop("%s; in %s:%d", what, place.file, place.line); }

}  // namespace runner

int main() {
    watch(get<int>());
    groups = get_size();
    group_size = get_size();
    std::vector<Argument> wanted(get<int>());
    for (Argument& argument : wanted) argument = get_argument();
    make_fibers(group_size.x * group_size.y * group_size.z);
    std::vector<size_t> placed[2];
    for (pass = 0; pass < 2; pass++) {
        tiles.clear();
        arguments.clear();
        for (const Argument& argument : wanted) {
            placed[pass].push_back(lay_out(argument));
            arguments.push_back(regions[placed[pass].back()].data);
        }
        run_pass();
        for (size_t i : placed[pass]) check_slack(regions[i]);
    }
    for (size_t i = 0; i < wanted.size(); i++) {
        if (!wanted[i].written) continue;
        const Region &a = regions[placed[0][i]], &b = regions[placed[1][i]];
        for (const Piece& piece : wanted[i].pieces) {
            size_t size = piece.bytes.empty() ? a.size : piece.bytes.size();
            for (size_t at = piece.at; at < piece.at + size; at++)
                if (a.data[at] != b.data[at])
                    stop("`%s` depends on the order of lanes or on memory that nobody wrote, from "
                         "byte %zu on", a.name, at);
            if (size) fwrite(a.data + piece.at, size, 1, stdout);
        }
    }
    fflush(stdout);
    _exit(0);
}
