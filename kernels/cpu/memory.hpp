// What happens where the system has no more memory: a status in place of an exception, which Python cannot catch.

#pragma once

#include <cstdint>
#include <new>
#include <stdexcept>

namespace sparloom {

// Runs work(); returns 1 if it got no memory, else 0.
template <typename Work>
int32_t out_of_memory(const Work& work) noexcept {
    try {
        work();
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    } catch (const std::length_error&) {  // more elements than a vector can have
        return 1;
    }
}

}  // namespace sparloom
