// How many rows a cache may have is known when it is created, without a device.
#include "backend/cuda/common/grid_limits.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace replayssm::cuda {
namespace {

CacheConfig config_of(std::int32_t heads, std::int32_t channels, std::int64_t rows) {
  CacheConfig config;
  LayerShape shape;
  shape.heads = heads;
  shape.conv_channels = channels;
  config.layers = {shape};
  config.max_step_tokens = 4;
  config.max_rows = rows;
  config.max_tokens = 1 << 20;
  return config;
}

TEST(CudaGridLimits, LaunchesAreRefusedBeyondTheGrid) {
  EXPECT_TRUE(check_grid("step", 0, 0).ok());
  EXPECT_TRUE(check_grid("step", kMaxGridBlocks, kMaxGridRows).ok());
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();
  for (const auto& [blocks, rows] : {std::pair<std::int64_t, std::int64_t>{kMaxGridBlocks + 1, 1},
                                     {1, kMaxGridRows + 1},
                                     {kFar, 1},
                                     {-1, 1},
                                     {1, -1}}) {
    const Status status = check_grid("step", blocks, rows);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_NE(status.message().find("step"), std::string::npos);
    EXPECT_NE(status.message().find(std::to_string(blocks)), std::string::npos);
  }
}

TEST(CudaGridLimits, RowsOfACacheAreBounded) {
  EXPECT_TRUE(check_grids(config_of(128, 8192, 1024)).ok());
  // 128 heads: a block each. 2^31 - 1 is no multiple of it.
  EXPECT_TRUE(check_grids(config_of(128, 0, kMaxGridBlocks / 128)).ok());
  const Status heads = check_grids(config_of(128, 0, kMaxGridBlocks / 128 + 1));
  EXPECT_EQ(heads.code(), StatusCode::kUnsupported);
  EXPECT_NE(heads.message().find(std::to_string(kMaxGridBlocks / 128)), std::string::npos);
  // 8192 channels: 64 groups of them, each in 64 parts of a prompt.
  EXPECT_TRUE(check_grids(config_of(8, 8192, kMaxGridBlocks / 4096)).ok());
  EXPECT_FALSE(check_grids(config_of(8, 8192, kMaxGridBlocks / 4096 + 1)).ok());
  EXPECT_FALSE(check_grids(config_of(1, 0, kMaxGridBlocks + 1)).ok());
  EXPECT_FALSE(check_grids(config_of(65536, 0, std::int64_t{1} << 31)).ok());
}

// What create has passed, conv_reference can launch.
TEST(CudaGridLimits, ConvolutionsStayWithinWhatWasChecked) {
  for (const std::int64_t steps : {1, 4, 16}) {
    for (const std::int64_t tokens : {1, 3, 70, 1 << 20}) {
      const std::int64_t most = conv_parts(steps, tokens, true);
      EXPECT_GE(conv_parts(steps, tokens, false), 1);
      EXPECT_LE(conv_parts(steps, tokens, false), most);
      EXPECT_LE(most, 64);
    }
  }
  LayerShape shape;
  for (const auto& [channels, groups] : {std::pair<std::int32_t, std::int64_t>{0, 0},
                                         {1, 1},
                                         {kConvThreads, 1},
                                         {kConvThreads + 1, 2},
                                         {std::numeric_limits<std::int32_t>::max(), 1 << 24}}) {
    shape.conv_channels = channels;
    EXPECT_EQ(conv_groups(shape), groups);
  }
}

}  // namespace
}  // namespace replayssm::cuda
