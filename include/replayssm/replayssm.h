/* The C interface of replayssm, version 0.1: slots, rings and the calls of a forward pass, for any
 * language and any compiler. It says what cache.hpp says; docs/law.md states the law that both
 * obey.
 *
 * - Every struct begins with struct_size, which the caller sets to sizeof of the struct it was
 * compiled with. Within 0.x structs only grow at their end; fields a caller does not know are taken
 * as 0, and 0 is always the default.
 * - Handles are opaque. Sizes of lists are found by query: call with a null list, read the count,
 * call again.
 * - Every call takes the device and stream it is to be ordered on (null: the cache's own device,
 * its default stream). On the CPU the stream is ignored. On a GPU every array and tensor named here
 * lies in device memory.
 * - Every call returns a replayssm_code and, where `error` is not null, one line that says what was
 * required, what was given and what is supported. When a call fails, nothing has been written.
 * - A handle is used from one thread at a time; different handles are independent.
 * It is over 400 lines long, because a C interface is included as one file.
 */
#ifndef REPLAYSSM_REPLAYSSM_H
#define REPLAYSSM_REPLAYSSM_H

/* NOLINTBEGIN: this file is C, whatever language includes it. */
#include <stddef.h>
#include <stdint.h>

#include "replayssm/export.h"

#ifdef __cplusplus
extern "C" {
#endif

#define REPLAYSSM_VERSION_MAJOR 0
#define REPLAYSSM_VERSION_MINOR 1
#define REPLAYSSM_VERSION_PATCH 0

/* The version of the library that is linked: major * 1000000 + minor * 1000 + patch. */
REPLAYSSM_API int32_t replayssm_version(void);

/* --- results */

typedef int32_t replayssm_code;
enum {
  REPLAYSSM_OK = 0,
  REPLAYSSM_INVALID_ARGUMENT = 1,    /* malformed whatever the object's state */
  REPLAYSSM_OUT_OF_RANGE = 2,        /* an index or position outside what exists */
  REPLAYSSM_FAILED_PRECONDITION = 3, /* legal at another time */
  REPLAYSSM_RESOURCE_EXHAUSTED = 4,  /* no slot, no block, no memory; nothing was changed */
  REPLAYSSM_UNSUPPORTED = 5,         /* no implementation takes it */
  REPLAYSSM_DATA_LOSS = 6,           /* bytes that are not what they claim to be */
  REPLAYSSM_NOT_FOUND = 7,
  REPLAYSSM_DEVICE_ERROR = 8,
  REPLAYSSM_INTERNAL = 9
};

typedef struct replayssm_error {
  uint32_t struct_size;
  replayssm_code code;
  char message[1024]; /* one line, cut off if longer, always terminated */
} replayssm_error; /* with a struct_size below this one's nothing is written: the code alone tells
                    */

/* --- constants */

enum {
  REPLAYSSM_F32 = 0,
  REPLAYSSM_BF16 = 1,
  REPLAYSSM_F16 = 2,
  REPLAYSSM_I8 = 3,
  REPLAYSSM_I32 = 4,
  REPLAYSSM_I64 = 5
};
enum { REPLAYSSM_RULE_MAMBA2 = 0, REPLAYSSM_RULE_GDN = 1, REPLAYSSM_RULE_KDA = 2 };
enum { REPLAYSSM_GATE_SOFTPLUS = 0, REPLAYSSM_GATE_BOUNDED = 1, REPLAYSSM_GATE_LOG_DECAY = 2 };
enum { REPLAYSSM_DECODE_REPLAY = 0, REPLAYSSM_DECODE_CONVENTIONAL = 1 };
enum {
  REPLAYSSM_STATE_F32 = 0,
  REPLAYSSM_STATE_F16 = 1,
  REPLAYSSM_STATE_BF16 = 2,
  REPLAYSSM_STATE_BF16_BF16 = 3,
  REPLAYSSM_STATE_I8_BF16 = 4,
  REPLAYSSM_STATE_I8 = 5
};
/* u as stored for the read path. 0 is bf16, so that a zeroed configuration has the default. */
enum { REPLAYSSM_UPDATE_BF16 = 0, REPLAYSSM_UPDATE_F32 = 1 };
enum { REPLAYSSM_DEVICE_CPU = 0, REPLAYSSM_DEVICE_CUDA = 1 };
/* Bits of a slot's error word. */
enum { REPLAYSSM_SLOT_NON_FINITE = 1, REPLAYSSM_SLOT_TORN = 2, REPLAYSSM_SLOT_OUT_OF_RANGE = 4 };
/* Flags of a layer; each turns off or changes what the checkpoints in use do. */
enum {
  REPLAYSSM_LAYER_DT_GIVEN = 1,        /* mamba2: dt as given, no softplus, bias or limits */
  REPLAYSSM_LAYER_BETA_GIVEN = 2,      /* gdn, kda: beta as given, no sigmoid */
  REPLAYSSM_LAYER_BETA_DOUBLED = 4,    /* gdn, kda: beta times 2 */
  REPLAYSSM_LAYER_NO_L2NORM = 8,       /* gdn, kda: k and q as given */
  REPLAYSSM_LAYER_GATE_RECORD_F32 = 16 /* kda: gate record in f32 */
};

/* Where a call runs and after what. */
typedef struct replayssm_stream {
  uint32_t struct_size;
  int32_t device;       /* REPLAYSSM_DEVICE_*, must be the cache's */
  int32_t device_index; /* of several GPUs; 0 in this version */
  void* handle;         /* cudaStream_t; null: the default stream */
} replayssm_stream;

/* A strided view; shape and stride count elements, the last axis has stride 1, data is aligned to
 * its element. data == null: absent. Other structs hold it by value, so this one is frozen: it
 * never grows. */
typedef struct replayssm_tensor {
  uint32_t struct_size;
  int32_t dtype;
  void* data;
  int32_t rank;     /* at most 4 */
  int32_t reserved; /* 0, as every field of this name */
  int64_t shape[4];
  int64_t stride[4];
} replayssm_tensor;

/* --- what a cache is made from */

/* One recurrent layer: geometry, options, constants. Constants are f32, the caller's, unchanged
 * while the cache lives. */
typedef struct replayssm_layer {
  uint32_t struct_size;
  int32_t rule;
  int32_t heads;         /* H, value heads Hv of gdn and kda */
  int32_t groups;        /* G, key heads Hk; divides heads */
  int32_t value_dim;     /* V, multiple of 8, 8 to 256 */
  int32_t key_dim;       /* K, likewise */
  int32_t conv_channels; /* 0: the caller convolves */
  int32_t conv_width;
  int32_t gate; /* gdn, kda */
  int32_t flags;
  float dt_min;             /* mamba2 */
  float dt_max;             /* mamba2; 0: no limit */
  float gate_lower_bound;   /* REPLAYSSM_GATE_BOUNDED: below 0 */
  float query_scale;        /* 0: K^-1/2 */
  const float* a_log;       /* [H], A = -exp(a_log); or */
  const float* a;           /* [H] */
  const float* dt_bias;     /* [H], kda [H, K]; null: 0 */
  const float* d;           /* [H] mamba2; null: 0 */
  const float* conv_weight; /* [conv_channels, conv_width] */
  const float* conv_bias;   /* [conv_channels]; null: 0 */
} replayssm_layer;

/* A parallel loop of the caller's: calls body(argument, i, worker) once for every i in [0, count),
 * worker < workers and not shared by calls that run at the same time; returns when all have
 * returned. */
typedef struct replayssm_parallel_for {
  uint32_t struct_size;
  int32_t workers;
  void (*run)(void* context, int64_t count, void (*body)(void* argument, int64_t index, int worker),
              void* argument);
  void* context;
} replayssm_parallel_for;

/* One tensor of a cache: count blocks (role 0) or slots, `bytes` each. Roles: 0 state, 1 values, 2
 * keys, 3 gates, 4 beta, 5 inverse norms, 6 updates, 7 conv, 8 control (TensorRole of cache.hpp has
 * their layouts). */
typedef struct replayssm_tensor_spec {
  uint32_t struct_size;
  int32_t role;
  int32_t layer; /* -1: of no layer */
  int32_t reserved;
  int64_t count;
  int64_t bytes;
  int64_t alignment; /* of base and stride */
} replayssm_tensor_spec;

/* Memory lent for such a tensor: element i at base + i * stride_bytes; what lies between is never
 * touched. */
typedef struct replayssm_tensor_memory {
  uint32_t struct_size;
  uint32_t reserved;
  void* base;
  int64_t stride_bytes;
} replayssm_tensor_memory;

/* Everything that pointers here lead to is copied by replayssm_cache_create, except what must live
 * as long as the cache: the constants of the layers, lent memory, and parallel->context. */
typedef struct replayssm_config {
  uint32_t struct_size;
  int32_t layer_count;
  const replayssm_layer* layers; /* read with layers[0].struct_size as their stride */
  int32_t decode;
  int32_t format;
  int32_t activations;
  int32_t update;
  int32_t window;          /* W; 0: 16 */
  int32_t max_step_tokens; /* T_max; 0: 1 */
  int64_t slots;
  int64_t blocks;     /* 0: one a slot */
  int64_t max_rows;   /* 0: slots */
  int64_t max_tokens; /* 0: max_rows * max_step_tokens */
  int32_t materialize_history;
  int32_t threads; /* of the library's pool; 0: the machine's */
  int32_t device;
  int32_t device_index;
  int32_t checked;
  int32_t memory_count; /* 0: the library allocates */
  const replayssm_tensor_memory*
      memory; /* one a spec, read with memory[0].struct_size as their stride */
  const replayssm_parallel_for* parallel; /* null: a pool of the library's own */
  const char* implementation;             /* null or empty: the best that fits */
} replayssm_config;

typedef struct replayssm_cache replayssm_cache;

/* The tensors a cache of this configuration consists of. *count is set to how many there are;
 * `specs` may be null, else it has room for `capacity` of them, read and written with
 * specs[0].struct_size as their stride. */
REPLAYSSM_API replayssm_code replayssm_cache_tensors(const replayssm_config* config,
                                                     replayssm_tensor_spec* specs, int32_t capacity,
                                                     int32_t* count, replayssm_error* error);

typedef struct replayssm_bytes {
  uint32_t struct_size;
  uint32_t reserved;
  int64_t state;
  int64_t rings;
  int64_t conv;
  int64_t control;
  int64_t scratch;
} replayssm_bytes;

REPLAYSSM_API replayssm_code replayssm_cache_bytes(const replayssm_config* config,
                                                   replayssm_bytes* bytes, replayssm_error* error);

REPLAYSSM_API replayssm_code replayssm_cache_create(const replayssm_config* config,
                                                    replayssm_cache** cache,
                                                    replayssm_error* error);
/* Null is allowed. */
REPLAYSSM_API void replayssm_cache_destroy(replayssm_cache* cache);

/* Facts of a cache; they wait for nothing. The name lives as long as the library. */
REPLAYSSM_API const char* replayssm_cache_implementation(const replayssm_cache* cache);
REPLAYSSM_API int64_t replayssm_cache_free_slots(const replayssm_cache* cache);
REPLAYSSM_API int32_t replayssm_cache_ring_length(const replayssm_cache* cache);
REPLAYSSM_API replayssm_code replayssm_cache_memory(const replayssm_cache* cache,
                                                    replayssm_bytes* bytes, replayssm_error* error);

/* State, ring and control bytes that one decoded token moves in one slot, all layers, when every
 * step carries step_tokens tokens of which accepted_tokens are accepted on average. */
REPLAYSSM_API replayssm_code replayssm_state_bytes_per_token(const replayssm_config* config,
                                                             double step_tokens,
                                                             double accepted_tokens, double* bytes,
                                                             replayssm_error* error);

/* Names of the implementations of this build, best first; null when index is not below their
 * number. *available (may be null) says whether this machine can run it. */
REPLAYSSM_API const char* replayssm_implementation_name(int32_t index, int32_t* available);

/* A short stable name, for example "invalid_argument". */
REPLAYSSM_API const char* replayssm_code_name(replayssm_code code);

/* --- slots */

typedef struct replayssm_slot_info {
  uint32_t struct_size;
  uint32_t error; /* REPLAYSSM_SLOT_* bits */
  int64_t position;
  int64_t block;
  uint64_t seed;
  int32_t committed;
  int32_t block_references;
  int32_t zero;
  int32_t reserved;
} replayssm_slot_info;

/* A fresh slot, whose state and conv history count as 0; its id is written to *slot. */
REPLAYSSM_API replayssm_code replayssm_acquire(replayssm_cache* cache, uint64_t seed, int64_t* slot,
                                               const replayssm_stream* stream,
                                               replayssm_error* error);
/* The same for a slot id of the caller's choice, which must be free. */
REPLAYSSM_API replayssm_code replayssm_acquire_slot(replayssm_cache* cache, int64_t slot,
                                                    uint64_t seed, const replayssm_stream* stream,
                                                    replayssm_error* error);
REPLAYSSM_API replayssm_code replayssm_release(replayssm_cache* cache, int64_t slot,
                                               const replayssm_stream* stream,
                                               replayssm_error* error);
REPLAYSSM_API replayssm_code replayssm_fork(replayssm_cache* cache, int64_t source, int64_t* slot,
                                            const replayssm_stream* stream, replayssm_error* error);
/* What is known of a slot. Waits for the device; not to be captured in a graph. */
REPLAYSSM_API replayssm_code replayssm_slot(replayssm_cache* cache, int64_t slot,
                                            replayssm_slot_info* info,
                                            const replayssm_stream* stream, replayssm_error* error);

/* The same of `count` slots with one wait: infos[i] of slots[i], written with
 * infos[0].struct_size as their stride. Nothing is written when one of them is not held. */
REPLAYSSM_API replayssm_code replayssm_slots(replayssm_cache* cache, const int64_t* slots,
                                             int32_t count, replayssm_slot_info* infos,
                                             const replayssm_stream* stream,
                                             replayssm_error* error);
/* Takes REPLAYSSM_SLOT_* bits back, once they have been read, in stream order; REPLAYSSM_SLOT_TORN
 * cannot be: a torn slot can only be released. */
REPLAYSSM_API replayssm_code replayssm_clear_errors(replayssm_cache* cache, int64_t slot,
                                                    uint32_t bits, const replayssm_stream* stream,
                                                    replayssm_error* error);

typedef struct replayssm_materialize_item {
  uint32_t struct_size;
  uint32_t reserved;
  int64_t source;
  int64_t position;
  int64_t target;
} replayssm_materialize_item;

/* Items are read with items[0].struct_size as their stride. */
REPLAYSSM_API replayssm_code replayssm_materialize(replayssm_cache* cache,
                                                   const replayssm_materialize_item* items,
                                                   int32_t count, const replayssm_stream* stream,
                                                   replayssm_error* error);

/* One layer of one slot: state [H, V, K] (key_major: [H, K, V]), conv [conv_width - 1,
 * conv_channels] oldest first. */
typedef struct replayssm_layer_state {
  uint32_t struct_size;
  int32_t key_major;
  replayssm_tensor state;
  replayssm_tensor conv;
} replayssm_layer_state;

/* One entry a layer, read with layers[0].struct_size as their stride. */
REPLAYSSM_API replayssm_code replayssm_load_state(replayssm_cache* cache, int64_t slot,
                                                  int64_t position,
                                                  const replayssm_layer_state* layers,
                                                  int32_t count, const replayssm_stream* stream,
                                                  replayssm_error* error);
REPLAYSSM_API replayssm_code replayssm_store_state(replayssm_cache* cache, int64_t slot,
                                                   const replayssm_layer_state* layers,
                                                   int32_t count, const replayssm_stream* stream,
                                                   replayssm_error* error);

/* A slot as versioned bytes (docs/formats.md). *size is set to the bytes needed; `bytes` may be
 * null, else it has room for `capacity`. Both wait for the device. */
REPLAYSSM_API replayssm_code replayssm_export(replayssm_cache* cache, int64_t slot, void* bytes,
                                              size_t capacity, size_t* size,
                                              const replayssm_stream* stream,
                                              replayssm_error* error);
REPLAYSSM_API replayssm_code replayssm_import(replayssm_cache* cache, const void* bytes,
                                              size_t size, int64_t* slot,
                                              const replayssm_stream* stream,
                                              replayssm_error* error);

/* --- one forward: begin, fold, then for each layer conv and step or prefill, then commit */

typedef struct replayssm_rows {
  uint32_t struct_size;
  int32_t has_padding_slot; /* 0: no id but INT64_MIN means padding, padding_slot is unread */
  int64_t count;
  const int64_t* slots;   /* [count] */
  const int32_t* tokens;  /* [count]; null: 1 each */
  const int32_t* parents; /* [sum of tokens], -1: the committed sequence; null: chains */
  const int64_t* offsets; /* [count]; null: packed */
  const uint8_t*
      prefill; /* [count]; null: none. On a GPU both step and prefill are due where given */
  int64_t
      padding_slot; /* e.g. -1; rows with this slot read and write nothing, their outputs are 0 */
} replayssm_rows;

typedef struct replayssm_layer_inputs {
  uint32_t struct_size;
  int32_t layer;
  replayssm_tensor value; /* x or v [tokens, H, V] */
  replayssm_tensor key;   /* B or k [tokens, G, K] */
  replayssm_tensor query; /* C or q [tokens, G, K] */
  replayssm_tensor gate;  /* [tokens, H], kda [tokens, H, K] */
  replayssm_tensor beta;  /* gdn, kda [tokens, H] */
  replayssm_tensor z;     /* optional, mamba2 [tokens, H, V] */
  replayssm_tensor out;   /* [tokens, H, V] */
} replayssm_layer_inputs;

typedef struct replayssm_conv_inputs {
  uint32_t struct_size;
  int32_t layer;
  int32_t no_silu;
  int32_t reserved;
  replayssm_tensor in;  /* [tokens, conv_channels] */
  replayssm_tensor out; /* [tokens, conv_channels] */
} replayssm_conv_inputs;

typedef struct replayssm_accepted {
  uint32_t struct_size;
  uint32_t reserved;
  int64_t count;         /* rows, as in begin */
  const int32_t* tokens; /* [count]; null: all */
  const int32_t* nodes;  /* [count, node_stride] trees; null: chains */
  int64_t node_stride;   /* 0: max_step_tokens */
} replayssm_accepted;

REPLAYSSM_API replayssm_code replayssm_begin(replayssm_cache* cache, const replayssm_rows* rows,
                                             const replayssm_stream* stream,
                                             replayssm_error* error);
REPLAYSSM_API replayssm_code replayssm_fold(replayssm_cache* cache, const replayssm_stream* stream,
                                            replayssm_error* error);
REPLAYSSM_API replayssm_code replayssm_conv(replayssm_cache* cache,
                                            const replayssm_conv_inputs* inputs,
                                            const replayssm_stream* stream, replayssm_error* error);
REPLAYSSM_API replayssm_code replayssm_step(replayssm_cache* cache,
                                            const replayssm_layer_inputs* inputs,
                                            const replayssm_stream* stream, replayssm_error* error);
REPLAYSSM_API replayssm_code replayssm_prefill(replayssm_cache* cache,
                                               const replayssm_layer_inputs* inputs,
                                               const replayssm_stream* stream,
                                               replayssm_error* error);
REPLAYSSM_API replayssm_code replayssm_commit(replayssm_cache* cache,
                                              const replayssm_accepted* accepted,
                                              const replayssm_stream* stream,
                                              replayssm_error* error);
REPLAYSSM_API replayssm_code replayssm_abort(replayssm_cache* cache, const replayssm_stream* stream,
                                             replayssm_error* error);

#ifdef __cplusplus
} /* extern "C" */
#endif

/* NOLINTEND */
#endif /* REPLAYSSM_REPLAYSSM_H */
