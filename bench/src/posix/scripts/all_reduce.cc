// All-reduce by gloo over its TCP transport: the sum of a vector of every rank, at every rank.
//
// The first element is not summed for its value: a rank that adds something to it ends the run after
// this operation, for all ranks alike.
//
// all_reduce rank STORE RANK RANKS FLOATS ROUNDS: compares each sum.
// all_reduce serve FOLDER FLOATS: is rank 0 of 2, again and again; FOLDER/N is the store of run N.
// all_reduce load FOLDER FLOATS SECONDS: is rank 1 of the next run, and prints a report as JSON.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gloo/allreduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

using Clock = std::chrono::steady_clock;

static void sum(void* to, const void* one, const void* other, size_t count) {
    for (size_t at = 0; at < count; at++) {
        static_cast<float*>(to)[at] = static_cast<const float*>(one)[at] + static_cast<const float*>(other)[at];
    }
}

// One rank of a group.
class Member {
  public:
    Member(const std::string& store, int rank, int ranks, size_t floats)
        : rank(rank), ranks(ranks), vector(floats), files(store) {
        gloo::transport::tcp::attr address("127.0.0.1");
        context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
        auto device = gloo::transport::tcp::CreateDevice(address);
        context->connectFullMesh(files, device);
    }

    // One operation; returns whether a rank has ended the run.
    bool reduce(bool last) {
        std::fill(vector.begin(), vector.end(), rank + 1.0f);
        vector[0] = last ? 1.0f : 0.0f;
        gloo::AllreduceOptions options(context);
        options.setOutput(vector.data(), vector.size());
        options.setReduceFunction(sum);
        gloo::allreduce(options);
        const float expected = ranks * (ranks + 1) / 2.0f;
        if (!std::all_of(vector.begin() + 1, vector.end(), [&](float each) { return each == expected; })) {
            throw std::runtime_error("a wrong sum");
        }
        return vector[0] != 0.0f;
    }

  private:
    int rank, ranks;
    std::vector<float> vector;
    gloo::rendezvous::FileStore files;
    std::shared_ptr<gloo::rendezvous::Context> context;
};

// The store of run `number`; the one that serves makes it.
static std::string store(const std::string& folder, int number) {
    return folder + "/" + std::to_string(number);
}

// Whether a file or folder is there.
static bool exists(const std::string& path) {
    struct stat found;
    return stat(path.c_str(), &found) == 0;
}

static void load(const std::string& folder, size_t floats, double seconds) {
    // The first run without a second rank; the one that serves may still be about to make it.
    int number = 0;
    while (exists(store(folder, number) + "/taken")) {
        number++;
    }
    while (!exists(store(folder, number))) {
        usleep(1000);
    }
    mkdir((store(folder, number) + "/taken").c_str(), 0700);
    Member member(store(folder, number), 1, 2, floats);
    std::vector<double> latencies;
    const auto begin = Clock::now();
    double elapsed = 0;
    for (bool ends = false; !ends;) {
        ends = member.reduce(elapsed >= seconds);
        const double now = std::chrono::duration<double>(Clock::now() - begin).count();
        latencies.push_back((now - elapsed) * 1e6);
        elapsed = now;
    }
    std::sort(latencies.begin(), latencies.end());
    const auto at = [&](double part) { return latencies[size_t(part * (latencies.size() - 1))]; };
    printf("{\"operations\": %zu, \"rate\": %f, \"least\": %f, \"p50\": %f, \"p99\": %f, \"p999\": %f}\n",
           latencies.size(), latencies.size() / elapsed, latencies[0], at(0.5), at(0.99), at(0.999));
}

int main(int count, char** words) {
    const std::vector<std::string> arguments(words + 1, words + count);
    const auto number = [&](size_t at) { return std::stoul(arguments.at(at)); };
    if (arguments.at(0) == "rank") {
        Member member(arguments.at(1), number(2), number(3), number(4));
        for (size_t left = number(5); left > 0; left--) {
            member.reduce(false);
        }
        // All have this sum before one of them disconnects.
        member.reduce(true);
        puts("all right");
    } else if (arguments.at(0) == "serve") {
        for (int run = 0;; run++) {
            mkdir(store(arguments.at(1), run).c_str(), 0700);
            Member member(store(arguments.at(1), run), 0, 2, number(2));
            while (!member.reduce(false)) {
            }
        }
    } else {
        load(arguments.at(1), number(2), std::stod(arguments.at(3)));
    }
}
