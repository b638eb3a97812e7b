/* A decode loop in C: one mamba2 layer, drafts with rejections, a fork, an export and an import,
 * and every kind of refusal that only the C side can meet. Prints what failed and returns 1, or
 * returns 0. */
#include <math.h>
#include <replayssm/replayssm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kHeads = 4, kGroups = 2, kValue = 16, kKey = 24, kTokens = 40 };

static int failures = 0;
#define CHECK(condition)                                     \
  do {                                                       \
    if (!(condition)) {                                      \
      printf("%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                            \
    }                                                        \
  } while (0)

static replayssm_error error;
#define OK(call)                                                \
  do {                                                          \
    replayssm_code code_ = (call);                              \
    if (code_ != REPLAYSSM_OK) {                                \
      printf("%s:%d: %s\n", __FILE__, __LINE__, error.message); \
      ++failures;                                               \
    }                                                           \
  } while (0)

static float x[kTokens][kHeads][kValue], b[kTokens][kGroups][kKey], c[kTokens][kGroups][kKey],
    dt[kTokens][kHeads];
static float a_log[kHeads];

static replayssm_tensor tensor(void* data, int rank, int64_t d0, int64_t d1, int64_t d2) {
  replayssm_tensor t;
  memset(&t, 0, sizeof t);
  t.struct_size = sizeof t;
  t.dtype = REPLAYSSM_F32;
  t.data = data;
  t.rank = rank;
  t.shape[0] = d0;
  t.shape[1] = d1;
  t.shape[2] = d2;
  t.stride[0] = rank == 3 ? d1 * d2 : d1;
  t.stride[1] = rank == 3 ? d2 : 1;
  t.stride[2] = 1;
  return t;
}

/* Runs `count` tokens from `first` in one step and accepts `accept` of them. */
static void forward(replayssm_cache* cache, int64_t slot, int first, int32_t count, int32_t accept,
                    float* out) {
  replayssm_rows rows;
  replayssm_layer_inputs in;
  replayssm_accepted accepted;
  memset(&rows, 0, sizeof rows);
  rows.struct_size = sizeof rows;
  rows.count = 1;
  rows.slots = &slot;
  rows.tokens = &count;
  OK(replayssm_begin(cache, &rows, NULL, &error));
  OK(replayssm_fold(cache, NULL, &error));
  memset(&in, 0, sizeof in);
  in.struct_size = sizeof in;
  in.value = tensor(x[first], 3, count, kHeads, kValue);
  in.key = tensor(b[first], 3, count, kGroups, kKey);
  in.query = tensor(c[first], 3, count, kGroups, kKey);
  in.gate = tensor(dt[first], 2, count, kHeads, 0);
  in.out = tensor(out, 3, count, kHeads, kValue);
  OK(replayssm_step(cache, &in, NULL, &error));
  memset(&accepted, 0, sizeof accepted);
  accepted.struct_size = sizeof accepted;
  accepted.count = 1;
  accepted.tokens = &accept;
  OK(replayssm_commit(cache, &accepted, NULL, &error));
}

/* The same by the plain recurrence, in double. */
static void recurrence(int tokens, double* last) {
  static double s[kHeads][kValue][kKey];
  int t, h, v, k;
  memset(s, 0, sizeof s);
  for (t = 0; t < tokens; ++t) {
    for (h = 0; h < kHeads; ++h) {
      const double step = log1p(exp((double)dt[t][h]));
      const double decay = exp(-exp((double)a_log[h]) * step);
      const int g = h / (kHeads / kGroups);
      for (v = 0; v < kValue; ++v) {
        double sum = 0.0;
        for (k = 0; k < kKey; ++k) {
          s[h][v][k] = s[h][v][k] * decay + step * x[t][h][v] * b[t][g][k];
          sum += s[h][v][k] * c[t][g][k];
        }
        last[h * kValue + v] = sum;
      }
    }
  }
}

int main(void) {
  static float out[4 * kHeads * kValue], other[4 * kHeads * kValue];
  static double exact[kHeads * kValue];
  replayssm_layer layer;
  replayssm_config config;
  replayssm_cache* cache = NULL;
  replayssm_tensor_spec specs[16];
  replayssm_slot_info info;
  int64_t slot = -1, twin = -1, copy = -1;
  int32_t count = 0;
  size_t size = 0;
  int i, t = 0, step = 0;
  void* bytes;

  memset(&error, 0, sizeof error);
  error.struct_size = sizeof error;
  srand(7);
  for (i = 0; i < (int)(sizeof x / sizeof(float)); ++i)
    ((float*)x)[i] = (float)rand() / (float)RAND_MAX - 0.5f;
  for (i = 0; i < (int)(sizeof b / sizeof(float)); ++i)
    ((float*)b)[i] = (float)rand() / (float)RAND_MAX - 0.5f;
  for (i = 0; i < (int)(sizeof c / sizeof(float)); ++i)
    ((float*)c)[i] = (float)rand() / (float)RAND_MAX - 0.5f;
  for (i = 0; i < (int)(sizeof dt / sizeof(float)); ++i)
    ((float*)dt)[i] = (float)rand() / (float)RAND_MAX - 1.5f;
  for (i = 0; i < kHeads; ++i) a_log[i] = 0.1f * (float)i - 1.0f;

  memset(&layer, 0, sizeof layer);
  layer.struct_size = sizeof layer;
  layer.rule = REPLAYSSM_RULE_MAMBA2;
  layer.heads = kHeads;
  layer.groups = kGroups;
  layer.value_dim = kValue;
  layer.key_dim = kKey;
  layer.a_log = a_log;
  memset(&config, 0, sizeof config);
  config.struct_size = sizeof config;
  config.layer_count = 1;
  config.layers = &layer;
  config.window = 6;
  config.max_step_tokens = 4;
  config.slots = 3;
  config.blocks = 5;
  config.threads = 2;

  CHECK(replayssm_version() == REPLAYSSM_VERSION_MAJOR * 1000000 + REPLAYSSM_VERSION_MINOR * 1000 +
                                   REPLAYSSM_VERSION_PATCH);
  OK(replayssm_cache_tensors(&config, NULL, 0, &count, &error));
  CHECK(count == 5); /* state, x, B, dt, control */
  memset(specs, 0, sizeof specs);
  specs[0].struct_size = sizeof specs[0];
  OK(replayssm_cache_tensors(&config, specs, 16, &count, &error));
  CHECK(specs[0].role == 0 && specs[0].bytes == 4 * kHeads * kValue * kKey && specs[0].count == 5);
  CHECK(replayssm_cache_tensors(&config, specs, 2, &count, &error) == REPLAYSSM_RESOURCE_EXHAUSTED);

  OK(replayssm_cache_create(&config, &cache, &error));
  if (cache == NULL) return 1;
  CHECK(replayssm_cache_implementation(cache) != NULL);
  OK(replayssm_acquire(cache, 42, &slot, NULL, &error));
  CHECK(slot == 0 && replayssm_cache_free_slots(cache) == 2 &&
        replayssm_cache_ring_length(cache) == 9);
  CHECK(replayssm_acquire_slot(cache, slot, 1, NULL, &error) == REPLAYSSM_FAILED_PRECONDITION);
  CHECK(strcmp(replayssm_code_name(REPLAYSSM_UNSUPPORTED), "unsupported") == 0);
  while (t < 30) { /* drafts of which the last is rejected now and then */
    const int32_t drafts = 1 + step % 4;
    const int32_t accept = step % 3 == 2 ? drafts - 1 : drafts;
    forward(cache, slot, t, drafts, accept, out);
    t += accept;
    ++step;
    if (accept > 0) {
      double worst = 0.0;
      recurrence(t, exact);
      for (i = 0; i < kHeads * kValue; ++i) {
        const double d = fabs(exact[i] - (double)out[(accept - 1) * kHeads * kValue + i]);
        if (!(d <= worst)) worst = d;
      }
      CHECK(worst < 1e-6);
    }
  }
  info.struct_size = sizeof info;
  OK(replayssm_slot(cache, slot, &info, NULL, &error));
  CHECK(info.position == t && info.seed == 42 && info.error == 0);

  /* Fork and import have the same future. */
  OK(replayssm_fork(cache, slot, &twin, NULL, &error));
  OK(replayssm_export(cache, slot, NULL, 0, &size, NULL, &error));
  bytes = malloc(size);
  OK(replayssm_export(cache, slot, bytes, size, &size, NULL, &error));
  CHECK(replayssm_export(cache, slot, bytes, size - 1, &size, NULL, &error) ==
        REPLAYSSM_RESOURCE_EXHAUSTED);
  OK(replayssm_import(cache, bytes, size, &copy, NULL, &error));
  ((char*)bytes)[size / 2] = (char)(((char*)bytes)[size / 2] ^ 1);
  CHECK(replayssm_import(cache, bytes, size, &copy, NULL, &error) == REPLAYSSM_DATA_LOSS);
  free(bytes);
  forward(cache, slot, t, 4, 4, out);
  forward(cache, twin, t, 4, 4, other);
  CHECK(memcmp(out, other, sizeof out) == 0);
  forward(cache, copy, t, 4, 4, other);
  CHECK(memcmp(out, other, sizeof out) == 0);

  /* Refusals: a struct too small, one with a tail this version does not know, a foreign stream,
   * nulls. */
  layer.struct_size = sizeof layer - 8;
  CHECK(replayssm_cache_create(&config, &cache, &error) == REPLAYSSM_INVALID_ARGUMENT);
  CHECK(strstr(error.message, "struct_size") != NULL);
  layer.struct_size = sizeof layer;
  {
    struct {
      replayssm_layer known;
      int64_t later;
    } grown;
    memset(&grown, 0, sizeof grown);
    grown.known = layer;
    grown.known.struct_size = sizeof grown;
    config.layers = &grown.known;
    OK(replayssm_cache_tensors(&config, NULL, 0, &count, &error)); /* 0 is the default */
    grown.later = 1;
    CHECK(replayssm_cache_tensors(&config, NULL, 0, &count, &error) == REPLAYSSM_UNSUPPORTED);
    config.layers = &layer;
  }
  {
    replayssm_stream stream;
    memset(&stream, 0, sizeof stream);
    stream.struct_size = sizeof stream;
    OK(replayssm_release(cache, twin, &stream, &error));
    stream.device = REPLAYSSM_DEVICE_CUDA;
    CHECK(replayssm_release(cache, slot, &stream, &error) == REPLAYSSM_INVALID_ARGUMENT);
  }
  { /* a struct of a later version: its own fields read as 0 out of this one, reserved stays 0 */
    struct {
      replayssm_slot_info known;
      int64_t later;
    } grown;
    memset(&grown, 0x7f, sizeof grown);
    grown.known.struct_size = sizeof grown;
    OK(replayssm_slot(cache, slot, &grown.known, NULL, &error));
    CHECK(grown.later == 0 && grown.known.reserved == 0 && grown.known.position == t + 4);
    layer.struct_size = sizeof layer;
  }
  { /* many slots at once, and error bits taken back */
    struct {
      replayssm_slot_info known;
      int64_t later;
    } many[2];
    int64_t slots[2];
    slots[0] = copy;
    slots[1] = slot;
    memset(many, 0x7f, sizeof many);
    many[0].known.struct_size = sizeof many[0]; /* that of the first counts */
    OK(replayssm_slots(cache, slots, 2, &many[0].known, NULL, &error));
    CHECK(many[0].known.position == t + 4 && many[1].known.position == t + 4);
    CHECK(many[0].known.seed == 42 && many[1].known.seed == 42 && many[1].known.error == 0);
    CHECK(many[1].later == 0 && many[1].known.struct_size == sizeof many[0]);
    OK(replayssm_slots(cache, NULL, 0, NULL, NULL, &error));
    CHECK(replayssm_slots(cache, NULL, 1, &many[0].known, NULL, &error) ==
          REPLAYSSM_INVALID_ARGUMENT);
    CHECK(replayssm_slots(cache, slots, -1, &many[0].known, NULL, &error) ==
          REPLAYSSM_INVALID_ARGUMENT);
    many[0].known.position = -5;
    slots[1] = twin; /* released */
    CHECK(replayssm_slots(cache, slots, 2, &many[0].known, NULL, &error) ==
          REPLAYSSM_FAILED_PRECONDITION);
    CHECK(many[0].known.position == -5);
    many[0].known.struct_size = 4;
    CHECK(replayssm_slots(cache, slots, 1, &many[0].known, NULL, &error) ==
          REPLAYSSM_INVALID_ARGUMENT);
    OK(replayssm_clear_errors(cache, slot, REPLAYSSM_SLOT_NON_FINITE | REPLAYSSM_SLOT_OUT_OF_RANGE,
                              NULL, &error));
    CHECK(replayssm_clear_errors(cache, slot, REPLAYSSM_SLOT_TORN, NULL, &error) ==
          REPLAYSSM_INVALID_ARGUMENT);
    CHECK(replayssm_clear_errors(cache, twin, REPLAYSSM_SLOT_NON_FINITE, NULL, &error) ==
          REPLAYSSM_FAILED_PRECONDITION);
  }
  { /* elements as far apart as an odd struct_size says, so that the second is not aligned */
    enum {
      kOddInfo = sizeof(replayssm_slot_info) + 5,
      kOddSpec = sizeof(replayssm_tensor_spec) + 3
    };
    union {
      replayssm_slot_info info;
      replayssm_tensor_spec spec;
      unsigned char bytes[5 * kOddInfo];
    } odd;
    replayssm_slot_info second;
    replayssm_tensor_spec last;
    int64_t slots[2];
    slots[0] = slot;
    slots[1] = copy;
    memset(&odd, 0x7f, sizeof odd);
    odd.info.struct_size = kOddInfo;
    OK(replayssm_slots(cache, slots, 2, &odd.info, NULL, &error));
    memcpy(&second, odd.bytes + kOddInfo, sizeof second);
    CHECK(second.struct_size == kOddInfo && second.position == t + 4 && second.seed == 42);
    CHECK(odd.bytes[2 * kOddInfo - 1] == 0 && odd.bytes[2 * kOddInfo] == 0x7f);
    memset(&odd, 0x7f, sizeof odd);
    odd.spec.struct_size = kOddSpec;
    OK(replayssm_cache_tensors(&config, &odd.spec, 5, &count, &error));
    memcpy(&last, odd.bytes + 4 * kOddSpec, sizeof last);
    CHECK(count == 5 && last.struct_size == kOddSpec && last.role > odd.spec.role);
    CHECK(last.bytes > 0 && last.count > 0 && odd.bytes[5 * kOddSpec] == 0x7f);
  }
  {
    replayssm_rows rows;
    replayssm_bytes memory;
    double moved = 0.0;
    memset(&rows, 0, sizeof rows);
    rows.struct_size = sizeof rows;
    OK(replayssm_begin(cache, &rows, NULL, &error)); /* no rows */
    OK(replayssm_abort(cache, NULL, &error));
    memset(&memory, 0, sizeof memory);
    memory.struct_size = sizeof memory;
    memory.reserved = 1; /* an output: nothing is read from it */
    OK(replayssm_cache_memory(cache, &memory, &error));
    CHECK(memory.state == 5 * 4 * kHeads * kValue * kKey);
    OK(replayssm_state_bytes_per_token(&config, 1.0, 1.0, &moved, &error));
    CHECK(moved > 4.0 * kHeads * kValue * kKey && moved < 8.0 * kHeads * kValue * kKey);
  }
  info.struct_size = 0x7fffffff; /* never set */
  CHECK(replayssm_slot(cache, slot, &info, NULL, &error) == REPLAYSSM_INVALID_ARGUMENT);
  config.implementation = "no\nsuch";
  CHECK(replayssm_cache_tensors(&config, NULL, 0, &count, &error) == REPLAYSSM_OK);
  {
    replayssm_cache* none = NULL;
    CHECK(replayssm_cache_create(&config, &none, &error) == REPLAYSSM_UNSUPPORTED);
    CHECK(none == NULL && strchr(error.message, '\n') == NULL);
  }
  config.implementation = NULL;
  CHECK(replayssm_release(NULL, slot, NULL, &error) == REPLAYSSM_INVALID_ARGUMENT);
  CHECK(replayssm_release(cache, twin, NULL, NULL) ==
        REPLAYSSM_FAILED_PRECONDITION); /* no error struct: still a code */
  layer.rule = 9;
  CHECK(replayssm_cache_tensors(&config, NULL, 0, &count, &error) == REPLAYSSM_INVALID_ARGUMENT);
  replayssm_cache_destroy(cache);
  replayssm_cache_destroy(NULL);
  return failures == 0 ? 0 : 1;
}
