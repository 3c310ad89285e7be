// A checksum for memory that was moved: fast enough to run over everything that is moved, and
// different for any one changed, lost or exchanged word. No protection against malice. Pure.
#pragma once

#include <cstdint>

#include "pliant/base/bytes.h"

namespace pliant {

uint64_t checksum64(Bytes bytes);

}  // namespace pliant
