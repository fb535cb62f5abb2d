// Lanes as fibers of one thread, a threadgroup at a time.
//
// A simdgroup runs until all of its lanes wait for the threadgroup. In the second pass lanes,
// simdgroups and threadgroups take their turns in reverse: what a missing barrier lets happen too
// early in one pass happens too late in the other.
#pragma once
#include <csetjmp>
#include <cstring>

#include "memory.h"

void runner_kernel(void* const* buffers);  // one lane; generated

namespace {

constexpr size_t stack_size = 256 * 1024;

enum class State { ready, at_simdgroup, at_barrier, done };

struct Fiber {
    runner::Lane self;
    State state;
    runner::Place place;
    uint turn;  // operations of its simdgroup so far
    jmp_buf where;
};

struct Simdgroup {
    alignas(16) char shared[2][runner::simd_width * runner::widest];
};

std::vector<void*> arguments;
std::vector<size_t> tiles;  // regions of threadgroup memory
std::vector<Fiber> fibers;
std::vector<Simdgroup> simdgroups;
Fiber* current;
jmp_buf scheduler;
uint3 groups, group_size;

void yield(State state, runner::Place place) {
    Fiber* self = current;
    self->state = state;
    self->place = place;
    if (!_setjmp(self->where)) _longjmp(scheduler, 1);
}

void live() {
    for (;;) {
        runner_kernel(arguments.data());
        yield(State::done, {"", 0});
    }
}

// Fibers are made once and begin anew in each threadgroup.
void make_fibers(uint count) {
    fibers.resize(count);
    simdgroups.resize(count / runner::simd_width);
    for (uint i = 0; i < count; i++) {
        Fiber& fiber = fibers[i];
        uint3 size = group_size;
        fiber.self = {uint3(i % size.x, i / size.x % size.y, i / size.x / size.y), i,
                      i % runner::simd_width, i / runner::simd_width};
        char* stack = static_cast<char*>(mmap(nullptr, page + stack_size, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        mprotect(stack, page, PROT_NONE);
        regions.push_back({"the stack of a lane", stack, page, stack + page, stack_size});
        static ucontext_t fresh, back;
        getcontext(&fresh);
        fresh.uc_stack.ss_sp = stack + page;
        fresh.uc_stack.ss_size = stack_size;
        fresh.uc_link = nullptr;
        makecontext(&fresh, [] {
            Fiber* self = current;
            if (!_setjmp(self->where)) swapcontext(&fresh, &back);
            live();
        }, 0);
        current = &fiber;
        swapcontext(&back, &fresh);
    }
}

void resume(Fiber& fiber) {
    current = &fiber;
    lane = &fiber.self;
    if (!_setjmp(scheduler)) _longjmp(fiber.where, 1);
    lane = nullptr;
}

const char* waits(const Fiber& fiber) {
    return fiber.state == State::done           ? "has ended"
           : fiber.state == State::at_barrier   ? "waits at a barrier"
                                                : "waits for its simdgroup";
}

bool same(runner::Place a, runner::Place b) { return a.line == b.line && !strcmp(a.file, b.file); }

// Sets lanes that all wait for each other free; false where they do not.
bool release(Fiber* first, uint count, State state) {
    for (uint i = 0; i < count; i++)
        if (first[i].state != state) return false;
    for (uint i = 1; i < count; i++)
        if (!same(first[i].place, first->place)) {
            lane = &first[i].self;
            stop("waits in %s:%d, and lane %u in %s:%d", first[i].place.file, first[i].place.line,
                 first->self.index, first->place.file, first->place.line);
        }
    for (uint i = 0; i < count; i++) first[i].state = State::ready;
    return true;
}

void run_simdgroup(Fiber* first) {
    constexpr uint width = runner::simd_width;
    do {
        for (uint i = 0; i < width; i++) {
            Fiber& fiber = first[pass == 0 ? i : width - 1 - i];
            if (fiber.state == State::ready) resume(fiber);
        }
    } while (release(first, width, State::at_simdgroup));
}

// Where some lanes wait for all of these, no other does anything else.
void check_same(Fiber* first, uint count, State state) {
    for (uint i = 0; i < count; i++)
        for (uint j = 0; first[i].state == state && j < count; j++)
            if (first[j].state != state) {
                lane = &first[i].self;
                stop("%s in %s:%d, but lane %u %s", waits(first[i]), first[i].place.file,
                     first[i].place.line, first[j].self.index, waits(first[j]));
            }
}

// Threadgroup memory holds nothing to rely on, and something else in each pass.
void spoil(const Region& tile) { memset(tile.data, pass == 0 ? 0xFF : 0x4B, tile.size); }

void run_group() {
    for (size_t tile : tiles) spoil(regions[tile]);
    for (Fiber& fiber : fibers) {
        fiber.state = State::ready;
        fiber.turn = 0;
    }
    uint count = simdgroups.size();
    do {
        for (uint i = 0; i < count; i++)
            run_simdgroup(&fibers[(pass == 0 ? i : count - 1 - i) * runner::simd_width]);
    } while (release(fibers.data(), fibers.size(), State::at_barrier));
    for (size_t i = 0; i < fibers.size(); i += runner::simd_width)
        check_same(&fibers[i], runner::simd_width, State::at_simdgroup);
    check_same(fibers.data(), fibers.size(), State::at_barrier);
    for (size_t tile : tiles) check_slack(regions[tile]);
}

void run_pass() {
    size_t count = size_t(groups.x) * groups.y * groups.z;
    for (size_t i = 0; i < count; i++) {
        size_t at = pass == 0 ? i : count - 1 - i;
        group = uint3(at % groups.x, at / groups.x % groups.y, at / groups.x / groups.y);
        run_group();
    }
}

}  // namespace
