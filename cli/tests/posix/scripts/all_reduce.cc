// All-reduce by gloo over its TCP transport: the sum of a vector of every rank, at every rank.
//
// usage: all_reduce STORE RANK RANKS FLOATS ROUNDS

#include <algorithm>
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

    // One operation.
    void reduce() {
        std::fill(vector.begin(), vector.end(), rank + 1.0f);
        gloo::AllreduceOptions options(context);
        options.setOutput(vector.data(), vector.size());
        options.setReduceFunction(sum);
        gloo::allreduce(options);
        const float expected = ranks * (ranks + 1) / 2.0f;
        if (!std::all_of(vector.begin(), vector.end(), [&](float each) { return each == expected; })) {
            throw std::runtime_error("a wrong sum");
        }
    }

  private:
    int rank, ranks;
    std::vector<float> vector;
    gloo::rendezvous::FileStore files;
    std::shared_ptr<gloo::rendezvous::Context> context;
};

int main(int count, char** words) {
    const std::vector<std::string> arguments(words + 1, words + count);
    const auto number = [&](size_t at) { return std::stoul(arguments.at(at)); };
    Member member(arguments.at(0), number(1), number(2), number(3));
    for (size_t left = number(4); left > 0; left--) {
        member.reduce();
    }
    puts("all right");
}
