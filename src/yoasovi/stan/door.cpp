// A Stan model as a few C functions that are called with rows of unconstrained points.
// Compiled in one file with what stanc made of the program. Constants of log p are kept, so that ELBOs can be compared.
#include <stan/io/json/json_data.hpp>
#include <stan/model/log_prob_grad.hpp>
#include <stan/services/util/create_rng.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace yoasovi_door {

using Model = stan::model::model_base;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kWorthThreads = 5e-4;  // seconds of work that are left; starting a thread takes a tenth of it

// The first complaint of any row.
class Said {
 public:
  Said(char* out, size_t room) : out_(out), room_(room) {}
  void add(const std::string& text) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (refused_++ == 0 && room_ > 0) {
      std::strncpy(out_, text.c_str(), room_ - 1);
      out_[room_ - 1] = '\0';
    }
  }
  long refused() const { return refused_; }

 private:
  char* out_;
  size_t room_;
  long refused_ = 0;
  std::mutex mutex_;
};

// Do something for every row; on several threads once the first row has shown that there is enough to do.
template <class Row>
void for_rows(long n, int threads, const Row& row) {
  const auto some = [&row](long begin, long end) {
    static thread_local stan::math::ChainableStack tape;  // each thread differentiates on its own
    for (long i = begin; i < end; ++i) row(i);
  };
  if (n == 0) return;
  const auto start = std::chrono::steady_clock::now();
  some(0, 1);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const long left = n - 1, parts = took.count() * left > kWorthThreads ? std::min<long>(threads, left) : 1;
  std::vector<std::thread> others;
  for (long k = 1; k < parts; ++k) others.emplace_back(some, 1 + left * k / parts, 1 + left * (k + 1) / parts);
  some(1, 1 + left / parts);
  for (auto& other : others) other.join();
}

// A seed of a point's own, so that its generated quantities are the same whenever they are asked for (FNV-1a).
inline unsigned int seed_of(const double* point, size_t dim) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(point);
  unsigned int hash = 2166136261u;
  for (size_t i = 0; i < dim * sizeof(double); ++i) hash = (hash ^ bytes[i]) * 16777619u;
  return hash;
}

}  // namespace yoasovi_door

// All else is hidden: several programs may be loaded side by side.
#pragma GCC visibility push(default)
extern "C" {

// Gives a model with its data, or null and the reason.
void* yoasovi_open(const char* data, char* said, size_t room) {
  yoasovi_door::Said complaint(said, room);
  try {
    std::istringstream text(data);
    stan::json::json_data context(text);
    return &new_model(context, 0, nullptr);
  } catch (const std::exception& error) {
    complaint.add(error.what());
    return nullptr;
  }
}

void yoasovi_close(void* model) { delete static_cast<yoasovi_door::Model*>(model); }

// Writes names, one to a line, and gives the room they need: of unconstrained parameters (0), of parameters (1), of
// everything that a draw has (2).
size_t yoasovi_names(const void* model, int which, char* out, size_t room) {
  const auto* stan_model = static_cast<const yoasovi_door::Model*>(model);
  std::vector<std::string> names;
  if (which == 0) {
    stan_model->unconstrained_param_names(names, false, false);
  } else {
    stan_model->constrained_param_names(names, which == 2, which == 2);
  }
  std::string text;
  for (const auto& name : names) text += name + "\n";
  if (text.size() < room) std::strcpy(out, text.c_str());
  return text.size() + 1;
}

// Looks at log p at n points, Jacobians included; also at its gradient unless that is null. Gives how many were refused.
long yoasovi_look(const void* model, long n, const double* points, double* values, double* gradients, int threads,
                  char* said, size_t room) {
  const auto& stan_model = *static_cast<const yoasovi_door::Model*>(model);
  const auto dim = static_cast<Eigen::Index>(stan_model.num_params_r());
  yoasovi_door::Said complaint(said, room);
  yoasovi_door::for_rows(n, threads, [&](long i) {
    Eigen::VectorXd point = Eigen::Map<const Eigen::VectorXd>(points + i * dim, dim), gradient;
    try {
      if (gradients == nullptr) {
        values[i] = stan_model.log_prob_jacobian(point, nullptr);
      } else {
        values[i] = stan::model::log_prob_grad<false, true>(stan_model, point, gradient, nullptr);
        Eigen::Map<Eigen::VectorXd>(gradients + i * dim, dim) = gradient;
      }
    } catch (const std::exception& error) {
      complaint.add(error.what());
      values[i] = yoasovi_door::kNan;
      if (gradients != nullptr) std::fill_n(gradients + i * dim, dim, yoasovi_door::kNan);
    }
  });
  return complaint.refused();
}

// Gives all that n points stand for: parameters on their own scale, transformed ones, generated quantities, `width` numbers
// for each. Where the latter two cannot be had they are NaN.
long yoasovi_outward(const void* model, long n, const double* points, double* out, long width, int threads, char* said,
                     size_t room) {
  const auto& stan_model = *static_cast<const yoasovi_door::Model*>(model);
  const size_t dim = stan_model.num_params_r();
  yoasovi_door::Said complaint(said, room);
  std::fill_n(out, n * width, yoasovi_door::kNan);
  yoasovi_door::for_rows(n, threads, [&](long i) {
    std::vector<double> point(points + i * dim, points + (i + 1) * dim), found;
    std::vector<int> none;
    auto rng = stan::services::util::create_rng(yoasovi_door::seed_of(point.data(), dim), i + 1);
    try {
      stan_model.write_array(rng, point, none, found, true, true, nullptr);
    } catch (const std::exception& error) {
      complaint.add(error.what());
      try {
        stan_model.write_array(rng, point, none, found, false, false, nullptr);
      } catch (const std::exception&) {
        return;
      }
    }
    std::copy_n(found.data(), std::min<size_t>(found.size(), width), out + i * width);
  });
  return complaint.refused();
}

}  // extern "C"
#pragma GCC visibility pop
