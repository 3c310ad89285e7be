// Slices that travel in messages, between members that cannot read each other's memory: several in
// flight, in memory of bounded size. Each side runs in a thread of its own.
//
// Both sides keep to the same order, so that none waits for another in a circle: first the
// neighbour after (before) in the view, then the one after that.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "pliant/runtime/session.h"
#include "pliant/tensor/strided.h"

namespace pliant {

struct Parcel {
  Rank peer = 0;  // the other side, in the view
  tensor::Box slice = {};
  size_t element_bytes = 1;
  tensor::BoxSource from = {};  // of what is sent
  tensor::BoxTarget to = {};    // of what is received
  size_t sum = 0;               // of what is received: where its checksum goes

  uint64_t bytes() const { return volume(slice) * element_bytes; }
};

// Sorted as they travel; those of one peer keep their order.
void sort_outgoing(std::vector<Parcel>& parcels, Rank self, Rank members);
void sort_incoming(std::vector<Parcel>& parcels, Rank self, Rank members);

// Return when all are sent, or received and in their places, or when one failed.
Status send_parcels(Session& session, std::span<const Parcel> parcels);
Status receive_parcels(Session& session, std::span<const Parcel> parcels, std::span<uint64_t> sums,
                       std::atomic<uint64_t>& done_bytes);

}  // namespace pliant
