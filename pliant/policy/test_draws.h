// Random numbers for tests and simulations of policies: the same for the same seed with every
// compiler, which the distributions of the standard library are not. A value; one thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>

namespace pliant {

class Draws {
 public:
  explicit Draws(uint64_t seed) : engine_(seed) {}

  // Uniform in [0, 1).
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  // Mean 0, variance 1 (Box and Muller).
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace pliant
