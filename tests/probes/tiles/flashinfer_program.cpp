// A program of attention as the rewritten kernel runs it, on a CPU.
namespace kvt {
struct Pages {
  const int* kv_indices;
  std::uint16_t* K_ptr;
  unsigned page_size;
};
struct Cache {
  unsigned page_size;
  std::uint16_t* k_data;
  const int *indices, *indptr;
};
struct Thread {
  unsigned x, y, z;
};
struct Other {};  // the parameters of a kernel without pages
struct Variant {};
}  // namespace kvt

extern "C" {
void set_facts(unsigned long long address) {
  std::memcpy(&kvt::facts.words, reinterpret_cast<void*>(address), sizeof(kvt::facts.words));
  kvt::facts.address = address;
}

// Runs a program of tiles `low` to `high`; `passed`: ns before each of its marks, in their order: K of the last tile,
// then K of the next before V of each.
void run(unsigned long long key, const int* indices, int page, int tile, int row, int head, int query_block,
         int first_page, int tokens, int low, int high, unsigned long long start_ns, const unsigned* passed, int paged) {
  kvt::clock_ns = start_ns;
  kvt::Pages pages{indices, reinterpret_cast<std::uint16_t*>(key), static_cast<unsigned>(page)};
  std::vector<kvt::Recording<kvt::Variant>> variants(32);
  std::vector<std::thread> lanes;
  for (int lane = 0; lane < 32; ++lane)
    lanes.emplace_back([&, lane] {
      kvt::lane = lane;
      variants[lane].kvt_at(row, head, query_block, first_page, tokens);
      if (paged) kvt::begin<false>(pages, variants[lane], high, low, lane, tile);
      else kvt::begin<false>(kvt::Other{}, variants[lane], high, low, lane, tile);
    });
  for (auto& lane : lanes) lane.join();
  for (int done = 0; done < high - low; ++done) {
    kvt::clock_ns += *passed++;
    for (auto& variant : variants) kvt::key<false>(variant);
    if (done == 0) continue;
    kvt::clock_ns += *passed++;
    for (auto& variant : variants) kvt::value<false>(variant);
  }
  kvt::clock_ns += *passed;
  for (auto& variant : variants) kvt::value<false>(variant);
  for (int lane = 0; lane < 32; ++lane) {
    if (paged) kvt::end(pages, variants[lane], lane);
    else kvt::end(kvt::Other{}, variants[lane], lane);
  }
}

// Runs a program that goes forward over `length` tokens from `begin` on, in `count` tiles; `passed`: ns before each mark,
// K of a tile, then its V. How many tiles it has is known between its first copies, if they cover its part, or later.
void run_forward(unsigned long long key, const int* indices, const int* indptr, int page, int tile, int row, int head,
                 int query_block, int begin, int length, int tokens, int count, unsigned long long start_ns,
                 const unsigned* passed) {
  kvt::clock_ns = start_ns;
  kvt::Cache cache{static_cast<unsigned>(page), reinterpret_cast<std::uint16_t*>(key), indices, indptr};
  std::vector<kvt::Forward> programs(64);
  std::vector<std::thread> lanes;
  for (unsigned lane = 0; lane < 64; ++lane)
    lanes.emplace_back([&, lane] {
      kvt::lane = lane;
      kvt::Thread thread{lane % 32, lane / 32, 0};
      kvt::Asked asked{};
      const int covering = (length + tile - 1) / tile;
      kvt::ask_forward<false>(asked, cache, row, thread);
      const auto claim = [&](int tiles) {
        kvt::claim_forward<false>(asked, cache, head, tokens, thread, begin, length, tiles, tile);
      };
      if (count == covering) {
        claim(covering);
      } else {
        kvt::claim_forward<true>(asked, cache, head, tokens, thread, begin, length, covering, tile);
        claim(count);
      }
      kvt::begin_forward<false>(programs[lane], asked, cache, row, head, query_block, tokens, thread, begin, length,
                                count, tile);
    });
  for (auto& lane : lanes) lane.join();
  lanes.clear();
  for (int done = 0; done < count; ++done) {
    kvt::clock_ns += *passed++;
    for (auto& program : programs) kvt::forward_key(program);
    kvt::clock_ns += *passed++;
    for (auto& program : programs) kvt::forward_value<512>(program);
  }
  for (unsigned lane = 0; lane < 64; ++lane)
    lanes.emplace_back([&, lane] {
      kvt::lane = lane;
      kvt::leave(programs[lane], cache, row, head, tokens, kvt::Thread{lane % 32, lane / 32, 0}, tile);
    });
  for (auto& lane : lanes) lane.join();
}
}
