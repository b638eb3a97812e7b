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

Status KvCache::reserve(std::int64_t tokens) {
  if (layout_->layers.empty() || tokens == 0) return {};
  const auto first = static_cast<std::size_t>(length_ / kPageTokens);
  const auto end = static_cast<std::size_t>((length_ + tokens + kPageTokens - 1) / kPageTokens);
  try {
    for (std::size_t page = first; page < end; ++page) {
      if (page >= pages_.size()) {
        pages_.push_back(std::make_shared<std::vector<std::byte>>(
            static_cast<std::size_t>(layout_->page_bytes)));
      } else if (pages_[page].use_count() > 1) {
        pages_[page] = std::make_shared<std::vector<std::byte>>(*pages_[page]);
      }
    }
  } catch (const std::bad_alloc&) {
    return error(StatusCode::kResourceExhausted, "attention: no memory for ", layout_->page_bytes,
                 " more bytes of keys and values");
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
