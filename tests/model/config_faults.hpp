// What the tests of config.json share: a text with one place changed, and what is wrong with a
// text.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "model/config.hpp"

namespace replayssm::model {

// `text` with the first `from` exchanged for `to`.
inline std::string changed(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

// The message with which a text is refused: one line that names the file.
inline std::string fault(const std::string& text, StatusCode code) {
  const auto config = parse_config(text);
  if (config.ok()) {
    ADD_FAILURE() << "accepted";
    return "accepted";
  }
  EXPECT_EQ(config.status().code(), code) << config.status().to_string();
  EXPECT_EQ(config.status().message().find('\n'), std::string::npos);
  EXPECT_EQ(config.status().message().rfind("config.json: ", 0), 0U);
  return config.status().message();
}

}  // namespace replayssm::model

#define EXPECT_FAULT(code, text, part)                                   \
  EXPECT_NE(fault(text, StatusCode::code).find(part), std::string::npos) \
      << fault(text, StatusCode::code)
