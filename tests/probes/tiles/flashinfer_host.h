// What kvtrace.cuh has from CUDA, for a CPU: 32 threads are a warp, and the test turns the clock.
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>
#define KVT_INLINE inline
namespace kvt {
inline Facts facts{};
inline u64 clock_ns = 0;
template <typename T> T* at(u64 address) { return reinterpret_cast<T*>(address); }
inline u64 load(u64 address) { return *at<u64>(address); }
inline void load_two(u64 address, u64& first, u64& second) {
  if (address % 16) std::abort();  // as a GPU would
  first = load(address), second = load(address + 8);
}
inline u32 now() { return static_cast<u32>(clock_ns); }
inline u64 add_in_first(u64 address, u64 amount, int thread) {
  if (thread) return 0xdeadbeefdeadbeef;  // nothing that may be used
  u64 before = load(address);
  *at<u64>(address) += amount;
  return before;
}
inline u64 whole_now() { return clock_ns; }
inline void raise(u64 address, u64 word) { if (word > load(address)) *at<u64>(address) = word; }
inline void put_two(u64 address, u32 first, u32 second) {
  if (address % 8) std::abort();
  *at<u32>(address) = first, *at<u32>(address + 4) = second;
}
inline void put_half(u64 address, u32 half) {
  if (address % 4) std::abort();  // as a GPU would
  *at<u32>(address) = half;
}
inline void put_ticks(u64 address, u32 ticks) { *at<std::uint8_t>(address) = static_cast<std::uint8_t>(ticks); }
inline void put_half_if(bool wanted, u64 address, u32 half) { if (wanted) put_half(address, half); }
inline void put_pair_if(bool wanted, u64 address, u32 ticks) {
  if (wanted) *at<std::uint16_t>(address) = static_cast<std::uint16_t>(ticks);
}
inline u32 bits_of(u32 word) { return 31 - __builtin_clz(word); }
inline u32 multiprocessor() { return 5; }

struct Warp {
  std::mutex lock;
  std::condition_variable all;
  int there = 0, turn = 0;
  u64 sum = 0, first = 0, told = 0, told_first = 0;
  void meet(u64 value, int lane) {  // the last to come tells all
    std::unique_lock<std::mutex> held(lock);
    sum += value;
    if (lane == 0) first = value;
    int mine = turn;
    if (++there == 32) {
      told = sum, told_first = first, there = 0, sum = 0, ++turn;
      all.notify_all();
    } else {
      all.wait(held, [&] { return turn != mine; });
    }
  }
};
inline Warp warp;
inline thread_local int lane = 0;
inline u32 sum_of_warp(u32 value) { warp.meet(value, lane); return static_cast<u32>(warp.told); }
inline u64 of_first_lane(u64 value) { warp.meet(value, lane); return warp.told_first; }
}  // namespace kvt
