// The keys and values that attention layers remember of one sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "replayssm/dtype.hpp"
#include "replayssm/status.hpp"

namespace replayssm::model {

// What one attention layer keeps of a token.
struct KvLayer {
  std::int64_t heads = 0;
  std::int64_t key_width = 0;    // of a head
  std::int64_t value_width = 0;  // of a head; 0: values are part of the keys (latent attention)

  [[nodiscard]] std::int64_t width() const { return heads * (key_width + value_width); }
};

struct KvShape {
  std::vector<KvLayer> layers;
  DType dtype = DType::kF32;  // f32 or bf16

  [[nodiscard]] std::int64_t bytes_per_token() const;
};

// Keys and values of one sequence, all attention layers, in pages of kPageTokens tokens that forks
// share until one of them writes. A page holds for each layer [heads][kPageTokens][key_width] and
// then [heads][kPageTokens][value_width].
class KvCache {
 public:
  static constexpr std::int64_t kPageTokens = 64;

  explicit KvCache(const KvShape& shape);

  // Committed tokens. Those beyond are overwritten by the next write.
  [[nodiscard]] std::int64_t length() const { return length_; }
  void set_length(std::int64_t tokens) { length_ = tokens; }

  // A second cache with the same committed tokens.
  [[nodiscard]] KvCache fork() const;

  // Makes positions length() .. length() + tokens writable: adds pages, copies shared ones. Nothing
  // committed changes. kResourceExhausted: no memory; says the bytes required, the tokens given and
  // those that found room.
  [[nodiscard]] Status reserve(std::int64_t tokens);
  // Bytes of the pages that reserve(tokens) adds and copies.
  [[nodiscard]] std::int64_t missing_bytes(std::int64_t tokens) const;

  // Writes one reserved position of one layer; key: [heads, key_width], value: [heads,
  // value_width], not read where that is 0.
  void write(std::int64_t layer, std::int64_t position, const void* key, const void* value);

  // [kPageTokens, key_width] or [kPageTokens, value_width] of one page.
  [[nodiscard]] const std::byte* keys(std::int64_t layer, std::int64_t page,
                                      std::int64_t head) const;
  [[nodiscard]] const std::byte* values(std::int64_t layer, std::int64_t page,
                                        std::int64_t head) const;
  [[nodiscard]] const KvLayer& layer(std::int64_t layer) const;

  // Of the pages, shared ones counted in full.
  [[nodiscard]] std::int64_t bytes() const;

 private:
  struct Place {
    KvLayer layer;
    std::int64_t keys = 0;  // offsets in a page, bytes
    std::int64_t values = 0;
  };
  // Where a page's parts lie; shared by forks.
  struct Layout {
    std::vector<Place> layers;
    std::int64_t element = 0;
    std::int64_t page_bytes = 0;
  };
  using Page = std::shared_ptr<std::vector<std::byte>>;
  // Pages [first, end) hold positions length() .. length() + tokens; none where no layer keeps
  // anything.
  struct PageRange {
    std::size_t first = 0;
    std::size_t end = 0;
  };
  [[nodiscard]] PageRange pages_of(std::int64_t tokens) const;
  // Nobody may write to it yet: not there, or shared with a fork.
  [[nodiscard]] bool missing(std::size_t page) const {
    return page >= pages_.size() || pages_[page].use_count() > 1;
  }
  explicit KvCache(std::shared_ptr<const Layout> layout) : layout_(std::move(layout)) {}
  [[nodiscard]] const Place& place(std::int64_t layer) const {
    return layout_->layers[static_cast<std::size_t>(layer)];
  }

  std::shared_ptr<const Layout> layout_;
  std::int64_t length_ = 0;
  std::vector<Page> pages_;
};

}  // namespace replayssm::model
