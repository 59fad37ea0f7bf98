// Times FlashInfer's decodes (`fa2`) of Llama-3.1-8B's shape, and looks whether what was recorded is what was read: see
// flashinfer_decodes.py, which compiles this twice, and defines REWRITTEN where the headers are the rewritten ones.
//
//     PROGRAM NAME SEQUENCES...      prints NAME; LEFT_OUT=1: in a step that is not recorded
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/variants.cuh>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

using namespace flashinfer;
using Number = nv_bfloat16;
using Word = unsigned long long;
using Params = BatchPrefillPagedParams<Number, Number, Number, int>;
using Variant = DefaultAttention<false, false, false, false>;

constexpr int LAYERS = 16, CONTEXT = 576, BLOCK = 16, HEADS = 32, KV_HEADS = 8, SIZE = 128, ROUNDS = 60;
constexpr int PAGES = CONTEXT / BLOCK, PAGE = BLOCK * KV_HEADS * SIZE;

#define OK(call)                                                             \
  do {                                                                       \
    const auto error = call;                                                 \
    if (error != cudaSuccess) {                                              \
      fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));         \
      exit(1);                                                               \
    }                                                                        \
  } while (0)

template <typename T>
T* room(size_t count) {
  T* place;
  OK(cudaMalloc(&place, count * sizeof(T)));
  OK(cudaMemset(place, 0, count * sizeof(T)));
  return place;
}

template <typename T>
T* on_device(const std::vector<T>& values) {
  T* place = room<T>(values.size());
  OK(cudaMemcpy(place, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return place;
}

__global__ void fill(Number* place, size_t count, unsigned seed) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x)
    place[i] = __float2bfloat16(((((unsigned)i * 2654435761u + seed) >> 8 & 0xffff) / 65536.f - .5f) * 3);
}

#ifdef REWRITTEN
extern "C" void kvt_facts(unsigned long long);

// Tells the kernels of a ring without an end and of the layers, whose caches lie one behind the other. Returns the
// ring's control words.
Word* tell(const Number* cache, size_t layer) {
  std::vector<Word> control(kvt::CONTROL_WORDS, 0), table;
  const bool left_out = getenv("LEFT_OUT") != nullptr;
  control[kvt::ADDRESS_WORD + kvt::PROGRAMS] = (Word)room<char>(24 << 20);
  control[kvt::ADDRESS_WORD + kvt::TILES] = (Word)room<char>(256 << 20);
  control[kvt::ROOM_WORD + kvt::PROGRAMS] = left_out ? 0 : 1 << 20;
  control[kvt::ROOM_WORD + kvt::TILES] = left_out ? 0 : 100 << 20;
  constexpr int BITS = 6;
  std::mt19937_64 numbers(5);
  Word factor = 0;
  for (bool collide = true; collide;) {
    collide = false, factor = numbers() | 1;
    table.assign(2 << BITS, 0);
    for (int index = 0; index < LAYERS; ++index) {
      const Word key = (Word)(cache + layer * index);
      Word* entry = &table[2 * (key * factor >> (64 - BITS))];
      collide |= entry[0] != 0;
      entry[0] = key, entry[1] = index | 1 << 8 | (index == 0 ? 1 << 16 : 0);
    }
  }
  Word* place = on_device(control);
  std::vector<Word> facts(kvt::FACT_ROWS_BEFORE + 1, 0);
  facts[kvt::FACT_CONTROL] = (Word)place, facts[kvt::FACT_HEADS] = ~0ull, facts[kvt::FACT_PAGES_BEFORE] = 1ull << 40;
  facts[kvt::FACT_LAYERS] = (Word)on_device(table);
  facts[kvt::FACT_FACTOR] = factor, facts[kvt::FACT_SHIFT] = 64 - BITS;
  kvt_facts((Word)on_device(facts));
  return place;
}

template <typename T>
std::vector<T> from_device(Word place, size_t count) {
  std::vector<T> values(count);
  OK(cudaMemcpy(values.data(), (void*)place, count * sizeof(T), cudaMemcpyDeviceToHost));
  return values;
}

void expect(bool holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "what was recorded is not what was read: %s\n", what);
  exit(1);
}

struct Record {  // as kvtrace's tiles/layout.py describes it
  unsigned start, sum;
  unsigned short row, query_block;
  unsigned char layer, head;
  unsigned short low;
  unsigned tiles;
  unsigned short count, flags;
};

// One program a layer, sequence and head has recorded all blocks of the sequence; the first head has summed them up, in
// the first layer listed them. Their places do not overlap. In a step that is left out nothing was recorded.
void look(const Word* control, Word pair, int sequences, const std::vector<int>& blocks) {
  const size_t programs = pair >> kvt::TILE_BITS, places = pair & ((1ull << kvt::TILE_BITS) - 1);
  if (getenv("LEFT_OUT")) return expect(pair == 0, "programs of a step that is left out");
  const auto words = from_device<Word>((Word)control, kvt::CONTROL_WORDS);
  const Word memory = words[kvt::ADDRESS_WORD + kvt::TILES];
  expect(programs == size_t(LAYERS) * sequences * KV_HEADS, "number of programs");
  expect(places == programs * (PAGES + PAGES % 2) + sequences * 2 * PAGES, "number of places");
  const auto records = from_device<Record>(words[kvt::ADDRESS_WORD + kvt::PROGRAMS], programs);
  const auto ticks = from_device<unsigned char>(memory, 2 * places);
  std::vector<char> seen(programs), used(places);
  for (const Record& each : records) {
    expect(each.layer < LAYERS && each.row < sequences && each.head < KV_HEADS, "layer, row or head");
    char& again = seen[(each.layer * sequences + each.row) * KV_HEADS + each.head];
    expect(!again++, "a program twice");
    expect(each.low == 0 && each.count == PAGES && each.query_block == 0, "a program's blocks");
    const size_t first = unsigned(each.tiles - unsigned(memory >> 1)), list = first + PAGES + PAGES % 2;
    const bool listed = each.layer == 0 && each.head == 0;
    expect(first % 2 == 0 && list + (listed ? 2 * PAGES : 0) <= places, "a program's places");
    for (size_t place = first; place < first + PAGES; ++place) expect(!used[place]++, "a place twice");
    unsigned sum = 0, passed = 0;
    for (int index = 0; index < PAGES; ++index) {
      const unsigned block = blocks[each.row * PAGES + index];
      sum += block * (2 * index + 1);
      passed += ticks[2 * (first + index)];
      unsigned told = block;
      if (listed) memcpy(&told, &ticks[2 * (list + 2 * index)], 4);
      expect(told == block, "the list of blocks");
    }
    expect(each.sum == (each.head == 0 ? sum : 0), "the sum of blocks");
    expect(bool(each.flags & kvt::HAS_SUM) == (each.head == 0), "who sums up");
    expect(bool(each.flags & kvt::LISTS_BLOCKS) == listed, "who lists");
    expect(passed > 0, "times");
  }
}
#endif

void time(int sequences, const char* name) {
  cudaStream_t stream;
  OK(cudaStreamCreate(&stream));
  const size_t layer = size_t(sequences) * PAGES * 2 * PAGE, queries = size_t(sequences) * HEADS * SIZE;
  Number *cache = room<Number>(layer * LAYERS), *query = room<Number>(queries), *out = room<Number>(queries);
  fill<<<2048, 256>>>(cache, layer * LAYERS, 7);
  fill<<<256, 256>>>(query, queries, 3);
  std::vector<int> starts(sequences + 1), blocks(sequences * PAGES), rows(sequences + 1);
  for (int row = 0; row <= sequences; ++row) starts[row] = row * PAGES, rows[row] = row;
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(1));
  int *of_rows = on_device(rows), *zeros = room<int>(sequences), *chunk = on_device(std::vector<int>{CONTEXT});
  int *d_blocks = on_device(blocks), *d_starts = on_device(starts);
  int* last = on_device(std::vector<int>(sequences, BLOCK));
#ifdef REWRITTEN
  Word* control = tell(cache, layer);
#endif

  const auto launch = [&](int index) {
    Number* keys = cache + layer * index;
    int64_t strides[3] = {2 * PAGE, KV_HEADS * SIZE, SIZE};
    paged_kv_t<Number, int> paged(KV_HEADS, BLOCK, SIZE, sequences, QKVLayout::kNHD, keys, keys + PAGE, strides,
                                  d_blocks, d_starts, last);
    Params params(query, paged, nullptr, of_rows, nullptr, nullptr, out, nullptr, nullptr, HEADS, HEADS * SIZE, SIZE,
                  -1, 0.f, 1 / sqrtf(SIZE), 1.f, 1e4f);
    params.request_indices = of_rows, params.o_indptr = of_rows;
    params.qo_tile_indices = params.kv_tile_indices = zeros;
    params.kv_chunk_size_ptr = chunk;
    params.padded_batch_size = params.max_total_num_rows = sequences;
    OK((BatchPrefillWithPagedKVCacheDispatched<true, 16, SIZE, SIZE, PosEncodingMode::kNone, false, MaskMode::kNone,
                                               Variant, Params>(params, nullptr, nullptr, false, stream)));
  };
  launch(0);
  OK(cudaStreamSynchronize(stream));
  cudaGraph_t captured;
  cudaGraphExec_t graph;
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int index = 0; index < LAYERS; ++index) launch(index);
  OK(cudaStreamEndCapture(stream, &captured));
  OK(cudaGraphInstantiate(&graph, captured, 0));

  cudaEvent_t before, after;
  OK(cudaEventCreate(&before));
  OK(cudaEventCreate(&after));
  std::vector<float> took;
  for (int round = 0; round < ROUNDS; ++round) {
#ifdef REWRITTEN
    OK(cudaMemsetAsync(control + kvt::CURSOR_WORD, 0, sizeof(Word), stream));
#endif
    float ms;
    OK(cudaEventRecord(before, stream));
    OK(cudaGraphLaunch(graph, stream));
    OK(cudaEventRecord(after, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaEventElapsedTime(&ms, before, after));
    took.push_back(1000 * ms / LAYERS);
  }
  std::sort(took.begin(), took.end());
  std::vector<unsigned short> bits(queries);
  OK(cudaMemcpy(bits.data(), out, 2 * queries, cudaMemcpyDeviceToHost));
  unsigned sum = 0;
  for (const unsigned short each : bits) sum = 31 * sum + each;
  Word pair = 0;
#ifdef REWRITTEN
  OK(cudaMemcpy(&pair, control + kvt::CURSOR_WORD, sizeof(Word), cudaMemcpyDeviceToHost));
  look(control, pair, sequences, blocks);
#endif
  printf("%-8s %4d x %d %8.2f us, output %08x, %llu programs, %llu places\n", name, sequences, CONTEXT,
         took[took.size() / 2], sum, pair >> 40, pair & ((1ull << 40) - 1));
  OK(cudaFree(cache));
}

int main(int count, char** words) {
  for (int word = 2; word < count; ++word) time(atoi(words[word]), words[1]);
}
