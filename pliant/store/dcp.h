// Checkpoints of torch.distributed.checkpoint (DCP) as torch writes them by default: a folder with
// `.metadata`, a pickle that says which piece of each tensor lies where, and `__R_N.distcp` files,
// in which each piece is a file of torch.save. Nothing of it is executed. Pure but for open_dcp().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/result.h"
#include "pliant/store/stored_tensor.h"

namespace pliant::store {

struct DcpLocation {
  std::string file;  // from the folder of the checkpoint; never outside it
  uint64_t offset = 0;
  uint64_t size_bytes = 0;
};

struct DcpTensor {
  TensorInfo info;
  std::vector<Box> boxes = {};
  std::vector<DcpLocation> places = {};  // of each box
};

// What is no tensor, and was pickled whole.
struct DcpObject {
  std::string name;
  DcpLocation where;
};

struct DcpMetadata {
  std::vector<DcpTensor> tensors = {};
  std::vector<DcpObject> objects = {};
};

Result<DcpMetadata> decode_dcp_metadata(Bytes pickle);

Result<CheckpointContents> open_dcp(const std::string& folder);

}  // namespace pliant::store
