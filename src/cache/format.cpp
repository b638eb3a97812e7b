// The bytes an exported slot begins with. Little endian, fields in the order written here, no
// padding.
#include "cache/format.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "core/checks.hpp"
#include "core/layout.hpp"
#include "core/text.hpp"

namespace replayssm {
namespace {

static_assert(std::endian::native == std::endian::little,
              "exports are written as memory is laid out");

constexpr std::string_view kMagic = "RSSMSLOT";
constexpr std::uint32_t kVersion = 1;
constexpr std::int64_t kFixedBytes = 8 + 4 + 4 + 8 + 8 + 3 * 4 + 8 + 8 + 4 + 4 + 4 + 4 + 4;
constexpr std::int64_t kLayerBytes = 12 * 4;

// FNV-1a over 8 bytes at a time: finds damage, is no protection against intent.
std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, sizeof(word));
    hash = (hash ^ word) * 0x100000001B3ULL;
    hash ^= hash >> 29U;
  }
  for (; i < bytes.size(); ++i)
    hash = (hash ^ static_cast<std::uint64_t>(bytes[i])) * 0x100000001B3ULL;
  return hash;
}

class Writer {
 public:
  explicit Writer(std::span<std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  void put(T value) {
    std::memcpy(bytes_.data() + at_, &value, sizeof(value));
    at_ += sizeof(value);
  }

 private:
  std::span<std::byte> bytes_;
  std::size_t at_ = 0;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  [[nodiscard]] T get() {
    T value{};
    std::memcpy(&value, bytes_.data() + at_, sizeof(value));
    at_ += sizeof(value);
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

// Everything about a layer that decides what its records mean.
struct LayerFields {
  std::int32_t value[12];
};

LayerFields layer_fields(const LayerShape& shape, DType activations) {
  const bool mamba2 = shape.rule == Rule::kMamba2;
  const auto bits = [](float value) { return std::bit_cast<std::int32_t>(value); };
  return {{static_cast<std::int32_t>(shape.rule), shape.heads, shape.groups, shape.value_dim,
           shape.key_dim, shape.conv_channels, shape.conv_width,
           mamba2 ? 0 : static_cast<std::int32_t>(shape.gate),
           mamba2 ? 0 : bits(shape.gate_lower_bound), shape.qk_l2norm && !mamba2 ? 1 : 0,
           static_cast<std::int32_t>(gate_record_dtype(shape, activations)), 0}};
}

Status data_loss(std::string_view what) { return error(StatusCode::kDataLoss, "import: ", what); }

}  // namespace

std::int64_t export_header_bytes(const CacheConfig& config) {
  return kFixedBytes + kLayerBytes * static_cast<std::int64_t>(config.layers.size());
}

std::int64_t export_payload_bytes(const CacheConfig& config, const ExportHeader& header) {
  const auto act = static_cast<std::int64_t>(dtype_bytes(config.activations));
  std::int64_t bytes = 0;
  for (const LayerShape& shape : config.layers) {
    if (!header.info.zero) bytes += state_elements(shape) * 4;
    bytes += header.info.committed * record_bytes(shape, config.activations, config.update);
    bytes += header.conv_valid * shape.conv_channels * act;
  }
  return bytes;
}

void write_export_header(const CacheConfig& config, const ExportHeader& header,
                         std::span<std::byte> bytes) {
  Writer out(bytes);
  for (const char c : kMagic) out.put(c);
  out.put(kVersion);
  out.put(static_cast<std::uint32_t>(config.layers.size()));
  out.put(static_cast<std::uint64_t>(bytes.size()));
  const std::size_t body = kMagic.size() + 4 + 4 + 8 + 8;
  out.put(std::uint64_t{0});
  out.put(static_cast<std::uint32_t>(config.format));
  out.put(static_cast<std::uint32_t>(config.activations));
  out.put(static_cast<std::uint32_t>(config.update));
  out.put(header.info.position);
  out.put(header.info.seed);
  out.put(header.info.committed);
  out.put(header.window);
  out.put(header.conv_valid);
  out.put(static_cast<std::uint32_t>(header.info.zero ? 1 : 0));
  out.put(header.info.error);
  for (const LayerShape& shape : config.layers) {
    for (const std::int32_t field : layer_fields(shape, config.activations).value) out.put(field);
  }
  const std::uint64_t sum = checksum(bytes.subspan(body));
  std::memcpy(bytes.data() + body - 8, &sum, sizeof(sum));
}

Result<ExportHeader> read_export_header(const CacheConfig& config,
                                        std::span<const std::byte> bytes) {
  if (bytes.size() < static_cast<std::size_t>(kFixedBytes)) {
    return data_loss(
        concat("an exported slot has at least ", kFixedBytes, " bytes, given ", bytes.size()));
  }
  Reader in(bytes);
  for (const char c : kMagic) {
    if (in.get<char>() != c) return data_loss("these are not the bytes of an exported slot");
  }
  const auto format_version = in.get<std::uint32_t>();
  if (format_version != kVersion) {
    return error(StatusCode::kUnsupported, "import: version ", format_version,
                 " given, supported: ", kVersion);
  }
  const auto layers = in.get<std::uint32_t>();
  const auto total = in.get<std::uint64_t>();
  const auto sum = in.get<std::uint64_t>();
  if (total != bytes.size()) {
    return data_loss(concat("the header says ", total, " bytes, given ", bytes.size()));
  }
  const std::size_t body = kMagic.size() + 4 + 4 + 8 + 8;
  if (checksum(bytes.subspan(body)) != sum)
    return data_loss("the checksum does not match; the bytes are damaged");
  const auto format = in.get<std::uint32_t>();
  const auto activations = in.get<std::uint32_t>();
  const auto update = in.get<std::uint32_t>();
  if (format != static_cast<std::uint32_t>(config.format) ||
      activations != static_cast<std::uint32_t>(config.activations) ||
      update != static_cast<std::uint32_t>(config.update)) {
    return error(StatusCode::kUnsupported, "import: format, activation dtype and update dtype are ",
                 format, ", ", activations, ", ", update, "; this cache has ",
                 static_cast<int>(config.format), ", ", static_cast<int>(config.activations), ", ",
                 static_cast<int>(config.update));
  }
  ExportHeader header;
  header.info.position = in.get<std::int64_t>();
  header.info.seed = in.get<std::uint64_t>();
  header.info.committed = in.get<std::int32_t>();
  header.window = in.get<std::int32_t>();
  header.conv_valid = in.get<std::int32_t>();
  const auto zero = in.get<std::uint32_t>();
  header.info.zero = zero != 0;
  header.info.error = in.get<std::uint32_t>();
  if (layers != config.layers.size()) {
    return error(StatusCode::kUnsupported, "import: ", layers, " layers given, this cache has ",
                 config.layers.size());
  }
  if (bytes.size() < static_cast<std::size_t>(export_header_bytes(config))) {
    return data_loss("the layer table is cut off");
  }
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const LayerFields fields = layer_fields(config.layers[i], config.activations);
    for (const std::int32_t field : fields.value) {
      const auto given = in.get<std::int32_t>();
      if (given != field) {
        return error(StatusCode::kUnsupported, "import: layer ", i,
                     " has another geometry or gate (", given, " where this cache has ", field,
                     ")");
      }
    }
  }
  const std::int32_t widest = kMaxWindow - 1 + kMaxStepTokens;
  if (header.info.position < 0 || header.info.position > kMaxPosition ||
      header.info.committed < 0 || header.info.committed > widest ||
      header.info.committed > header.info.position || header.conv_valid < 0 ||
      header.conv_valid > widest + kMaxConvWidth || zero > 1 || header.window < 1 ||
      header.window > kMaxWindow ||
      (header.info.error & ~static_cast<std::uint32_t>(kSlotNonFinite | kSlotOutOfRange)) != 0) {
    return data_loss("a cursor is out of range");
  }
  header.payload_bytes = export_payload_bytes(config, header);
  if (static_cast<std::int64_t>(bytes.size()) !=
      export_header_bytes(config) + header.payload_bytes) {
    return data_loss(concat("required ", export_header_bytes(config) + header.payload_bytes,
                            " bytes by the cursors, given ", bytes.size()));
  }
  return header;
}

}  // namespace replayssm
