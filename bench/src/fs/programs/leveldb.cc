// LevelDB, as the papers on file systems measure it: keys of 16 bytes, values of 1,000 bytes.
//
// leveldb FOLDER RECORDS SYNCED: fills a database in order, in random order, and again; reads it
// in random order; fills another one with SYNCED records, each with a sync. For each of these it
// prints a line: name, operations, seconds, and the nanoseconds of the operations at the 50th,
// 99th and 99.9th percentile and of the longest.

#include <leveldb/db.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

using Clock = std::chrono::steady_clock;

static void check(const leveldb::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

static std::unique_ptr<leveldb::DB> fresh(const std::string& folder) {
  leveldb::Options options;
  options.create_if_missing = true;
  options.compression = leveldb::kNoCompression;
  check(leveldb::DestroyDB(folder, options));
  leveldb::DB* database = nullptr;
  check(leveldb::DB::Open(options, folder, &database));
  return std::unique_ptr<leveldb::DB>(database);
}

static std::string key(uint32_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016u", number);
  return text;
}

template <typename Operation>
static void measure(const char* name, uint32_t operations, bool in_order, Operation operation) {
  std::mt19937 random(7);
  std::vector<uint64_t> times(operations);
  const auto begin = Clock::now();
  for (uint32_t number = 0; number < operations; number++) {
    const uint32_t chosen = in_order ? number : random() % operations;
    const auto before = Clock::now();
    operation(chosen);
    times[number] = std::chrono::nanoseconds(Clock::now() - before).count();
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::sort(times.begin(), times.end());
  const auto at = [&](double part) { return (unsigned long long)times[(operations - 1) * part]; };
  std::printf("%s %u %.6f %llu %llu %llu %llu\n", name, operations, seconds, at(0.5), at(0.99),
              at(0.999), at(1));
  std::fflush(stdout);
}

int main(int count, char** arguments) {
  if (count != 4) return 2;
  const std::string folder = arguments[1];
  const uint32_t records = std::strtoul(arguments[2], nullptr, 10);
  const uint32_t synced = std::strtoul(arguments[3], nullptr, 10);
  if (records == 0 || synced == 0) return 2;
  std::mt19937 random(1);
  std::string noise(1 << 20, '\0');
  for (char& byte : noise) byte = ' ' + random() % 95;
  const auto value = [&](uint32_t number) {
    return leveldb::Slice(noise.data() + number * 101ull % (noise.size() - 1000), 1000);
  };
  leveldb::WriteOptions lazy, strict;
  strict.sync = true;
  {
    auto database = fresh(folder);
    measure("fill", records, true, [&](uint32_t n) { check(database->Put(lazy, key(n), value(n))); });
  }
  {
    auto database = fresh(folder);
    const auto put = [&](uint32_t n) { check(database->Put(lazy, key(n), value(n))); };
    measure("random-fill", records, false, put);
    measure("overwrite", records, false, put);
    std::string found;
    measure("random-read", records, false, [&](uint32_t n) {
      const auto status = database->Get(leveldb::ReadOptions(), key(n), &found);
      if (!status.IsNotFound()) check(status);
      if (status.ok() && leveldb::Slice(found) != value(n)) check(leveldb::Status::Corruption(key(n)));
    });
  }
  {
    auto database = fresh(folder);
    measure("sync-fill", synced, false,
            [&](uint32_t n) { check(database->Put(strict, key(n), value(n))); });
  }
  check(leveldb::DestroyDB(folder, leveldb::Options()));
}
