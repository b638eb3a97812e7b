// JSON: values by kind, Python's extra literals, limits, and faults as one line.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "model/json_fields.hpp"
#include "model/json_value.hpp"

namespace replayssm::model {
namespace {

JsonLimits with_nonfinite() {
  JsonLimits limits;
  limits.allow_nonfinite = true;
  return limits;
}

std::string fault(std::string_view text, const JsonLimits& limits = {}) {
  const Result<JsonValue> parsed = parse_json(text, "file", limits);
  if (parsed.ok()) return "accepted";
  EXPECT_EQ(parsed.status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(parsed.status().message().find('\n'), std::string::npos);
  EXPECT_EQ(parsed.status().message().rfind("file: ", 0), 0u);
  return parsed.status().message();
}

TEST(Json, ReadsEveryKind) {
  const Result<JsonValue> parsed =
      parse_json(R"({"b":[1,-2.5,true,null,"x\u00e9"],"a":{},"big":18446744073709551615})", "f");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  const JsonValue::Array& list = *parsed->find("b")->as_array();
  EXPECT_EQ(*list[0].as_integer(), 1);
  EXPECT_EQ(list[0].as_real(), nullptr);
  EXPECT_EQ(*list[1].as_real(), -2.5);
  EXPECT_TRUE(*list[2].as_bool());
  EXPECT_TRUE(list[3].is_null());
  EXPECT_EQ(*list[4].as_string(), "x\xC3\xA9");
  EXPECT_TRUE(parsed->find("a")->as_object()->members().empty());
  EXPECT_EQ(*parsed->find("big")->as_real(), 18446744073709551616.0);
  EXPECT_EQ(parsed->find("missing"), nullptr);
  EXPECT_EQ(parsed->as_object()->members()[0].key, "b");  // the order of the file
}

TEST(Json, NonfiniteLiteralsOnlyOutsideOfStrings) {
  const std::string text =
      R"(["Infinity \" NaN",null,Infinity,[-Infinity,NaN],"null",null,{"NaN":Infinity}])";
  EXPECT_NE(fault(text), "accepted");
  const Result<JsonValue> parsed = parse_json(text, "f", with_nonfinite());
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  const JsonValue::Array& list = *parsed->as_array();
  EXPECT_EQ(*list[0].as_string(), "Infinity \" NaN");
  EXPECT_TRUE(list[1].is_null());
  EXPECT_EQ(*list[2].as_real(), INFINITY);
  EXPECT_EQ(*(*list[3].as_array())[0].as_real(), -INFINITY);
  EXPECT_TRUE(std::isnan(*(*list[3].as_array())[1].as_real()));
  EXPECT_EQ(*list[4].as_string(), "null");
  EXPECT_TRUE(list[5].is_null());
  EXPECT_EQ(*list[6].find("NaN")->as_real(), INFINITY);
  for (const char* bad : {"[Infinityx]", "[xNaN]", "[--Infinity]", "[1Infinity]", "[+Infinity]",
                          "[nullNaN]", "Infin", "[-Infinity0]"}) {
    EXPECT_NE(fault(bad, with_nonfinite()), "accepted") << bad;
  }
}

TEST(Json, RefusesWhatIsMalformed) {
  for (const char* bad : {"", "{", "[1,]", "{\"a\":1,}", "{\"a\" 1}", "nul", "[1] 2", "'a'", "01",
                          "[1e999]", "\"\\ud800\"", "{a:1}", "\"unclosed", "[\"\t\"]"}) {
    EXPECT_NE(fault(bad), "accepted") << bad;
  }
  EXPECT_NE(fault(std::string("{}\0{", 4)).find("NUL at byte 2"), std::string::npos);
  EXPECT_NE(fault("[\"\xFF\"]").find("not UTF-8 at byte 2"), std::string::npos);
  EXPECT_NE(fault("[1,\n\n x]").find("malformed"), std::string::npos);
}

TEST(Json, RefusesDuplicateKeysAtAnyDepth) {
  EXPECT_NE(fault(R"({"a":1,"b":2,"a":3})").find("'a' appears twice"), std::string::npos);
  EXPECT_NE(fault(R"([{"x":{"k":1,"\u006b":1}}])").find("'k' appears twice"), std::string::npos);
  EXPECT_EQ(fault(R"({"a":{"a":1},"b":{"a":2}})"), "accepted");
}

TEST(Json, HoldsItsLimits) {
  JsonLimits limits;
  limits.max_depth = 3;
  EXPECT_EQ(fault("[[[1]]]", limits), "accepted");
  EXPECT_NE(fault("[[[[1]]]]", limits).find("deeper than 3"), std::string::npos);
  limits.max_values = 4;
  EXPECT_EQ(fault("[1,2,3]", limits), "accepted");
  EXPECT_NE(fault("[1,2,3,4]", limits).find("more than 4 values"), std::string::npos);
  EXPECT_NE(fault(std::string(1'000'000, '[')).find("deeper than 64"), std::string::npos);
}

TEST(JsonFields, KeepsTheFirstFaultAndSaysWhatIsRequired) {
  const Result<JsonValue> parsed = parse_json(
      R"({"n":5,"r":0.5,"t":"x","f":1,"null":null,"ids":[1,2],"nan":NaN})", "f", with_nonfinite());
  ASSERT_TRUE(parsed.ok());
  JsonFields good(*parsed, "file");
  EXPECT_EQ(good.integer({"n"}, {1, 5}), 5);
  EXPECT_EQ(good.integer({"null", "n"}, {1, 5}), 5);  // null counts as absent
  EXPECT_EQ(good.integer_or({"null"}, {1, 5}, 3), 3);
  EXPECT_EQ(good.real({"r"}, {0, 1}), 0.5);
  EXPECT_EQ(good.real({"n"}, {0, 9}), 5.0);
  EXPECT_EQ(good.text({"t"}), "x");
  EXPECT_EQ(good.integers({"ids"}, {0, 9}), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(good.integers({"n"}, {0, 9}), std::vector<std::int64_t>{5});
  EXPECT_TRUE(good.integers({"missing"}, {0, 9}).empty());
  EXPECT_TRUE(good.status().ok()) << good.status().to_string();

  const auto message = [&](auto&& read) {
    JsonFields fields(*parsed, "file");
    read(fields);
    EXPECT_EQ(fields.status().code(), StatusCode::kInvalidArgument);
    return fields.status().message();
  };
  EXPECT_EQ(message([](JsonFields& f) {
              (void)f.integer({"n"}, {1, 4});
            }),
            "file: n: a whole number from 1 to 4 is required, given the number 5");
  EXPECT_EQ(message([](JsonFields& f) {
              (void)f.integer({"x", "y"}, {1, 4});
            }),
            "file: x or y is missing; a whole number from 1 to 4 is required");
  EXPECT_NE(message([](JsonFields& f) {
              (void)f.integer({"r"}, {0, 4});
            }).find("0.5"),
            std::string::npos);
  EXPECT_NE(message([](JsonFields& f) {
              (void)f.real({"nan"}, {0, 4});
            }).find("nan"),
            std::string::npos);
  EXPECT_NE(message([](JsonFields& f) { (void)f.boolean_or({"f"}, true); }).find("true or false"),
            std::string::npos);
  EXPECT_NE(message([](JsonFields& f) {
              (void)f.integers({"ids"}, {0, 1});
            }).find("number 2"),
            std::string::npos);
  const std::string first = message([](JsonFields& f) {
    (void)f.text({"n"});
    (void)f.text({"r"});
  });
  EXPECT_NE(first.find("file: n:"), std::string::npos);
}

}  // namespace
}  // namespace replayssm::model
