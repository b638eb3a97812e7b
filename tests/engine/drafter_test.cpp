// Drafts by prompt lookup.
#include "engine/drafter.hpp"

#include <gtest/gtest.h>

namespace replayssm::engine {
namespace {

using Tokens = std::vector<std::int32_t>;

Tokens drafts(const Tokens& text, std::int32_t count, NgramOptions options = {4, 2}) {
  Tokens out = {99};  // what stood there before is gone
  ngram_drafts(text, count, options, out);
  return out;
}

TEST(NgramDrafts, TheTokensAfterTheEarlierOccurrence) {
  EXPECT_EQ(drafts({1, 2, 3, 4, 5, 1, 2}, 3), (Tokens{3, 4, 5}));
  EXPECT_EQ(drafts({1, 2, 3, 4, 5, 1, 2}, 1), (Tokens{3}));
}

TEST(NgramDrafts, LongerMatchesGoFirstAndLaterOnesAmongEquals) {
  // "7 1 2" stands at the start, the shorter "1 2" later.
  EXPECT_EQ(drafts({7, 1, 2, 3, 9, 1, 2, 4, 7, 1, 2}, 1), (Tokens{3}));
  EXPECT_EQ(drafts({1, 2, 3, 9, 1, 2, 4, 8, 1, 2}, 1), (Tokens{4}));
}

TEST(NgramDrafts, LongestIsALimit) {
  // With matches of two at most, the later one wins over the longer one.
  EXPECT_EQ(drafts({7, 1, 2, 3, 9, 1, 2, 4, 7, 1, 2}, 1, {2, 2}), (Tokens{4}));
}

TEST(NgramDrafts, ShorterMatchesThanTheShortestCountForNothing) {
  EXPECT_EQ(drafts({5, 2, 3, 6, 2}, 4), (Tokens{}));
  EXPECT_EQ(drafts({5, 2, 3, 6, 2}, 2, {4, 1}), (Tokens{3, 6}));
}

TEST(NgramDrafts, RunOnIntoThemselves) {
  EXPECT_EQ(drafts({4, 1, 2, 1, 2}, 5), (Tokens{1, 2, 1, 2, 1}));
  EXPECT_EQ(drafts({3, 3, 3}, 4), (Tokens{3, 3, 3, 3}));
}

TEST(NgramDrafts, NothingToFind) {
  EXPECT_EQ(drafts({}, 3), (Tokens{}));
  EXPECT_EQ(drafts({1}, 3), (Tokens{}));
  EXPECT_EQ(drafts({1, 2, 3, 4}, 3), (Tokens{}));
  EXPECT_EQ(drafts({1, 2, 1, 2}, 0), (Tokens{}));
}

}  // namespace
}  // namespace replayssm::engine
