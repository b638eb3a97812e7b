// What the device holds, read on the host: tables, arrays of a call, and slots to and from host
// bytes in the order of core/export_order.hpp.
#include "backend/cuda/transfer.hpp"

#include <algorithm>

#include "backend/cuda/common/launch.cuh"
#include "core/control.hpp"
#include "core/export_order.hpp"
#include "math/law_rows.hpp"
#include "math/rows.hpp"

namespace replayssm::cuda {

Status TableMirror::read(const CacheTable& table, bool forward) {
  host_ = table;
  const auto* first = reinterpret_cast<const std::byte*>(table.slots.block);
  const auto* end = forward ? reinterpret_cast<const std::byte*>(table.forward.order)
                            : reinterpret_cast<const std::byte*>(table.forward.rows);
  bytes_.resize(static_cast<std::size_t>(place_control(host_, nullptr)));
  place_control(host_, bytes_.data());
  REPLAYSSM_RETURN_IF_ERROR(check(cudaDeviceSynchronize(), "waiting for the device"));
  return check(cudaMemcpy(bytes_.data(), first, static_cast<std::size_t>(end - first),
                          cudaMemcpyDeviceToHost),
               "reading the cache's tables");
}

namespace {

// A device array of the caller's, or null where it was null.
template <typename T>
Status copy_array(const T*& array, std::int64_t count, std::vector<T>& copy) {
  if (array == nullptr) return {};
  copy.resize(static_cast<std::size_t>(std::max<std::int64_t>(count, 1)));
  REPLAYSSM_RETURN_IF_ERROR(
      check(cudaMemcpy(copy.data(), array, static_cast<std::size_t>(count) * sizeof(T),
                       cudaMemcpyDeviceToHost),
            "reading an array of the call"));
  array = copy.data();
  return {};
}

}  // namespace

Status check_rows_now(const CacheTable& table, const Rows& rows, std::int64_t& tokens) {
  TableMirror mirror;
  REPLAYSSM_RETURN_IF_ERROR(mirror.read(table, false));
  CacheTable& host = mirror.table();
  Rows copied = rows;
  std::vector<std::int64_t> slots;
  std::vector<std::int64_t> offsets;
  std::vector<std::int32_t> counts;
  std::vector<std::int32_t> parents;
  std::vector<std::uint8_t> prefill;
  REPLAYSSM_RETURN_IF_ERROR(copy_array(copied.slots, rows.count, slots));
  REPLAYSSM_RETURN_IF_ERROR(copy_array(copied.tokens, rows.count, counts));
  REPLAYSSM_RETURN_IF_ERROR(copy_array(copied.offsets, rows.count, offsets));
  REPLAYSSM_RETURN_IF_ERROR(copy_array(copied.prefill, rows.count, prefill));
  // How many parents there are is known when the counts have passed.
  const auto check_all = [&] {
    std::fill_n(host.slots.row, host.slots.slots, std::int64_t{-1});
    return check_rows(host, copied);
  };
  copied.parents = nullptr;
  REPLAYSSM_RETURN_IF_ERROR(check_all());
  RowsBefore all;
  tokens = 0;
  for (std::int64_t row = 0; row < rows.count; ++row) {
    tokens = std::max(tokens, row_offset(copied, row, all) + row_tokens(copied, row));
    all = joined(all, only_row(host, copied, row));
  }
  if (rows.parents == nullptr) return {};
  copied.parents = rows.parents;
  REPLAYSSM_RETURN_IF_ERROR(copy_array(copied.parents, all.packed, parents));
  return check_all();
}

Status check_accepted_now(const CacheTable& table, const Accepted& accepted) {
  TableMirror mirror;
  REPLAYSSM_RETURN_IF_ERROR(mirror.read(table, true));
  const CacheTable& host = mirror.table();
  Accepted copied = accepted;
  std::vector<std::int32_t> counts;
  std::vector<std::int32_t> nodes;
  REPLAYSSM_RETURN_IF_ERROR(copy_array(copied.tokens, host.forward.count, counts));
  // Of each row the nodes that may be read: its last ones need not exist behind the last row.
  const std::int64_t stride = node_stride(host, accepted);
  const std::int64_t width = std::min<std::int64_t>(stride, host.max_step_tokens);
  if (accepted.nodes != nullptr && host.forward.count > 0) {
    nodes.resize(static_cast<std::size_t>(host.forward.count * width));
    REPLAYSSM_RETURN_IF_ERROR(check(
        cudaMemcpy2D(nodes.data(), static_cast<std::size_t>(width) * 4, accepted.nodes,
                     static_cast<std::size_t>(stride) * 4, static_cast<std::size_t>(width) * 4,
                     static_cast<std::size_t>(host.forward.count), cudaMemcpyDeviceToHost),
        "reading the accepted nodes"));
    copied.nodes = nodes.data();
    copied.node_stride = width;
  }
  return check_accepted(host, copied);
}

namespace {

// `kind` copies between the pieces' memory, on the device, and `payload`, on the host.
Status copy(const ExportPieces& pieces, std::byte* payload, cudaMemcpyKind kind) {
  const bool in = kind == cudaMemcpyHostToDevice;
  void* const target = in ? pieces.memory : payload + pieces.payload;
  const void* const source = in ? payload + pieces.payload : pieces.memory;
  const std::int64_t target_pitch = in ? pieces.memory_pitch : pieces.payload_pitch;
  const std::int64_t source_pitch = in ? pieces.payload_pitch : pieces.memory_pitch;
  return check(
      cudaMemcpy2D(target, static_cast<std::size_t>(target_pitch), source,
                   static_cast<std::size_t>(source_pitch), static_cast<std::size_t>(pieces.bytes),
                   static_cast<std::size_t>(pieces.count), kind),
      in ? "import" : "export");
}

Status copy_slot_bytes(const CacheTable& table, const SlotTable& cursors, const ExportedSlot& of,
                       std::byte* payload, cudaMemcpyKind kind) {
  return each_export_piece(table, cursors.order + of.slot * table.ring,
                           cursors.conv_order + of.slot * table.conv_ring, of,
                           [&](const ExportPieces& pieces) { return copy(pieces, payload, kind); });
}

}  // namespace

Status export_slot_bytes(const CacheTable& table, std::int64_t slot, std::span<std::byte> bytes) {
  TableMirror mirror;
  REPLAYSSM_RETURN_IF_ERROR(mirror.read(table, false));
  const SlotTable& cursors = mirror.slots();
  const ExportedSlot of = leaving_slot(cursors, slot);
  return copy_slot_bytes(table, cursors, of, bytes.data(), cudaMemcpyDeviceToHost);
}

Status import_slot_bytes(const CacheTable& table, std::int64_t slot, const SlotInfo& info,
                         std::int32_t conv_valid, std::span<const std::byte> bytes) {
  TableMirror mirror;
  REPLAYSSM_RETURN_IF_ERROR(mirror.read(table, false));
  const ExportedSlot of = entering_slot(mirror.slots(), slot, info, conv_valid);
  // Copying to the device reads the payload alone.
  return copy_slot_bytes(table, mirror.slots(), of, const_cast<std::byte*>(bytes.data()),
                         cudaMemcpyHostToDevice);
}

}  // namespace replayssm::cuda
