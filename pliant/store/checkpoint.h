// One face over every format of checkpoint on disk: which tensors it has, any part of any of them,
// and the values that are no tensors. Owned by one reader; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pliant/base/result.h"
#include "pliant/store/stored_tensor.h"
#include "pliant/tensor/collection.h"

namespace pliant::store {

class Checkpoint final {
 public:
  // Finds out the format of the file or folder and reads what it says about itself; the elements
  // stay on the disk. Refuses a checkpoint of which pieces are missing or overlap.
  static Result<std::unique_ptr<Checkpoint>> open(const std::string& path);

  const std::string& path() const { return path_; }
  CheckpointFormat format() const { return contents_.format; }
  // The numbers of the tensors are their places in here.
  const tensor::Collection& tensors() const { return tensors_; }
  // Where the pieces of a tensor lie.
  const std::vector<StoredPiece>& pieces(size_t tensor) const;
  const std::vector<StoredValue>& values() const { return contents_.values; }
  size_t files() const { return contents_.files.size(); }

  // Reads a box of a tensor, row-major, into `to`, which has exactly its size. The box lies inside.
  // What was read does not stay in the memory of this process, and while it is read, no more of the
  // files is in there than bound_pages() says, however the elements are strewn over them.
  Status read(size_t tensor, const Box& box, std::span<std::byte> to);
  void bound_pages(uint64_t size_bytes) { pages_bytes_max_ = size_bytes; }
  // Reads all of a small tensor.
  Result<std::vector<std::byte>> read_whole(size_t tensor);

  // Compares what the files hold with the checksums that some formats keep beside it.
  Status check_files();

 private:
  Checkpoint(std::string path, CheckpointContents contents, tensor::Collection tensors);

  // Where the elements of a piece are, in a file that `mapped` keeps.
  Result<PieceView> view(const TensorInfo& info, const StoredPiece& piece,
                         std::shared_ptr<const MappedFile>& mapped);
  void copy_in_parts(const PieceView& from, const Box& to_box, std::span<std::byte> to,
                     size_t element_bytes);
  Error about(const TensorInfo& info, const StoredPiece& piece, const std::string& what) const;

  std::string path_;
  CheckpointContents contents_;
  tensor::Collection tensors_;
  uint64_t pages_bytes_max_ = uint64_t{64} << 20;
  uint64_t pages_bytes_ = 0;  // of files, read since pages were given back
};

}  // namespace pliant::store
