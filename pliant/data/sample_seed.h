// The randomness of a sample: what a dataset draws for it (augmentation, dropout of inputs) is
// seeded by the job's seed, the epoch of the data and the sample alone. Whoever computes a sample,
// in whichever step, draws the same; so training does not depend on the cluster. Pure; any thread.
//
// The seeds are part of what a job has committed, like the order of an epoch (permutation.h);
// sample_seed_test.cc pins them.
#pragma once

#include <cstdint>

namespace pliant {

// Another number for each combination, as if drawn at random; it can be had in any order.
uint64_t sample_seed(uint64_t seed, uint64_t epoch, uint64_t sample);

}  // namespace pliant
