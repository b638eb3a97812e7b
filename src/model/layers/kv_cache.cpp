// See kv_cache.hpp.
#include "model/layers/kv_cache.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "core/text.hpp"

namespace replayssm::model {

std::int64_t KvShape::bytes_per_token() const {
  std::int64_t width = 0;
  for (const KvLayer& layer : layers) width += layer.width();
  return width * static_cast<std::int64_t>(dtype_bytes(dtype));
}

KvCache::KvCache(const KvShape& shape) {
  auto layout = std::make_shared<Layout>();
  layout->element = static_cast<std::int64_t>(dtype_bytes(shape.dtype));
  const std::int64_t row = kPageTokens * layout->element;
  for (const KvLayer& layer : shape.layers) {
    Place place;
    place.layer = layer;
    place.keys = layout->page_bytes;
    place.values = place.keys + layer.heads * layer.key_width * row;
    layout->page_bytes = place.values + layer.heads * layer.value_width * row;
    layout->layers.push_back(place);
  }
  layout_ = std::move(layout);
}

const KvLayer& KvCache::layer(std::int64_t layer) const { return place(layer).layer; }

const std::byte* KvCache::keys(std::int64_t layer, std::int64_t page, std::int64_t head) const {
  const Place& at = place(layer);
  return pages_[static_cast<std::size_t>(page)]->data() + at.keys +
         head * kPageTokens * at.layer.key_width * layout_->element;
}

const std::byte* KvCache::values(std::int64_t layer, std::int64_t page, std::int64_t head) const {
  const Place& at = place(layer);
  return pages_[static_cast<std::size_t>(page)]->data() + at.values +
         head * kPageTokens * at.layer.value_width * layout_->element;
}

std::int64_t KvCache::bytes() const {
  return static_cast<std::int64_t>(pages_.size()) * layout_->page_bytes;
}

KvCache KvCache::fork() const {
  KvCache other(layout_);
  other.length_ = length_;
  // Without an attention layer there are no pages, however long the sequence is.
  const std::size_t used =
      std::min(pages_.size(), static_cast<std::size_t>((length_ + kPageTokens - 1) / kPageTokens));
  other.pages_.assign(pages_.begin(), pages_.begin() + static_cast<std::ptrdiff_t>(used));
  return other;
}

KvCache::PageRange KvCache::pages_of(std::int64_t tokens) const {
  if (layout_->layers.empty() || tokens == 0) return {};
  return {static_cast<std::size_t>(length_ / kPageTokens),
          static_cast<std::size_t>((length_ + tokens + kPageTokens - 1) / kPageTokens)};
}

std::int64_t KvCache::missing_bytes(std::int64_t tokens) const {
  const PageRange range = pages_of(tokens);
  std::int64_t pages = 0;
  for (std::size_t page = range.first; page < range.end; ++page) pages += missing(page) ? 1 : 0;
  return pages * layout_->page_bytes;
}

Status KvCache::reserve(std::int64_t tokens) {
  const PageRange range = pages_of(tokens);
  const std::int64_t required = missing_bytes(tokens);
  const std::int64_t held = bytes();
  std::size_t page = range.first;
  try {
    for (; page < range.end; ++page) {
      if (!missing(page)) continue;
      if (page >= pages_.size()) {
        pages_.push_back(std::make_shared<std::vector<std::byte>>(
            static_cast<std::size_t>(layout_->page_bytes)));
      } else {
        pages_[page] = std::make_shared<std::vector<std::byte>>(*pages_[page]);
      }
    }
  } catch (const std::bad_alloc&) {
    const std::int64_t room = static_cast<std::int64_t>(page) * kPageTokens;
    return error(
        StatusCode::kResourceExhausted, "attention: no memory for keys and values: ", required,
        " bytes are required beyond the ", held, " held, given a context of ", length_,
        " tokens and ", tokens, " more; there is room for ", std::max(room, length_), " tokens");
  }
  return {};
}

void KvCache::write(std::int64_t layer, std::int64_t position, const void* key, const void* value) {
  const Place& at = place(layer);
  std::byte* page = pages_[static_cast<std::size_t>(position / kPageTokens)]->data();
  const auto copy = [&](std::int64_t base, std::int64_t width, const void* from) {
    const std::int64_t row_bytes = width * layout_->element;
    for (std::int64_t head = 0; head < at.layer.heads; ++head) {
      std::memcpy(page + base + (head * kPageTokens + position % kPageTokens) * row_bytes,
                  static_cast<const std::byte*>(from) + head * row_bytes,
                  static_cast<std::size_t>(row_bytes));
    }
  };
  copy(at.keys, at.layer.key_width, key);
  if (at.layer.value_width > 0) copy(at.values, at.layer.value_width, value);
}

}  // namespace replayssm::model
