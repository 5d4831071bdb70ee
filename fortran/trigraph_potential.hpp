// Energies, forces and stresses from potentials exported by trigraph.torch.export_potential, in C++ without Python.
//
// Programs must link libtorch and have libtrigraph_torch.so in their run path (see examples/cpp-potential/CMakeLists.txt). Errors are
// reported as std::runtime_error.
#ifndef TRIGRAPH_POTENTIAL_HPP
#define TRIGRAPH_POTENTIAL_HPP
#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <dlfcn.h>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <unordered_map>
#include <vector>

namespace trigraph {

// One or more structures; arrays are row-major.
struct Atoms {
    std::vector<int64_t> z;                               // (atoms): atomic numbers
    std::vector<double> pos;                              // (atoms, 3): positions in angstrom
    std::vector<double> cells = std::vector<double>(9);   // (structures, 3, 3): cell vectors in angstrom; zero if there is no cell
    std::vector<int64_t> src, dst;                        // (edges): neighbours; each pair occurs in both directions, in any order
    std::vector<int64_t> shifts;                          // (edges, 3): the vector of an edge is pos[src] - pos[dst] + shifts * cell
    std::vector<int64_t> batch = {};                      // (atoms): structure of each atom; empty for a single structure
    std::vector<double> weights = {};                     // (atoms): factors of the atomic energies; empty for factors of 1
};

struct Results {
    std::vector<double> energy;    // (structures), in eV
    std::vector<double> forces;    // (atoms, 3), in eV / angstrom
    std::vector<double> energies;  // (atoms), in eV
    std::vector<double> stress;    // (structures, 3, 3), in eV / angstrom^3; empty if the package does not compute stresses
    std::vector<double> virials;   // (atoms, 3, 3), in eV; the sum is -stress * volume; empty if stress is empty
};

[[noreturn]] inline void refuse(const std::string &text) { throw std::runtime_error("trigraph: " + text); }

// Parse numbers separated by spaces.
template <class Number> std::vector<Number> numbers_in(const std::string &text)
{
    std::vector<Number> numbers;
    std::istringstream words(text);
    for (std::string word; words >> word;)
        numbers.push_back(static_cast<Number>(std::strtod(word.c_str(), nullptr)));  // strtod also parses "nan"
    return numbers;
}

// Add all edges within the cutoff to a structure. Since all pairs of atoms are tested, use another method for large structures.
inline void find_neighbors(Atoms &atoms, double cutoff, std::array<bool, 3> periodic)
{
    const double *a = atoms.cells.data(), *b = a + 3, *c = a + 6;
    double inverse[3][3], reach[3] = {0, 0, 0};
    auto cross = [](const double *u, const double *v, double *w) {
        for (int k = 0; k < 3; k++)
            w[k] = u[(k + 1) % 3] * v[(k + 2) % 3] - u[(k + 2) % 3] * v[(k + 1) % 3];
    };
    auto dot = [](const double *u, const double *v) { return u[0] * v[0] + u[1] * v[1] + u[2] * v[2]; };

    cross(b, c, inverse[0]), cross(c, a, inverse[1]), cross(a, b, inverse[2]);
    const double volume = dot(a, inverse[0]);
    if ((periodic[0] || periodic[1] || periodic[2]) && !(std::abs(volume) > 0))
        refuse("the cell has no volume; expected three independent vectors, also where a direction is not periodic");
    for (int k = 0; k < 3; k++)
        reach[k] = periodic[k] ? cutoff * std::sqrt(dot(inverse[k], inverse[k])) / std::abs(volume) : 0.0;
    const auto number = static_cast<int64_t>(atoms.z.size());
    for (int64_t j = 0; j < number; j++)
        for (int64_t i = 0; i < number; i++) {
            int64_t low[3] = {0, 0, 0}, high[3] = {0, 0, 0};
            double vec[3], image[3];
            for (int k = 0; k < 3; k++)
                vec[k] = atoms.pos[3 * j + k] - atoms.pos[3 * i + k];
            for (int k = 0; k < 3; k++)
                if (periodic[k]) {
                    const double at = -dot(vec, inverse[k]) / volume;
                    low[k] = static_cast<int64_t>(std::ceil(at - reach[k])), high[k] = static_cast<int64_t>(std::floor(at + reach[k]));
                }
            for (int64_t x = low[0]; x <= high[0]; x++)
                for (int64_t y = low[1]; y <= high[1]; y++)
                    for (int64_t z = low[2]; z <= high[2]; z++) {
                        for (int k = 0; k < 3; k++)
                            image[k] = vec[k] + x * a[k] + y * b[k] + z * c[k];
                        if ((i != j || x != 0 || y != 0 || z != 0) && dot(image, image) < cutoff * cutoff) {
                            atoms.src.push_back(j), atoms.dst.push_back(i);
                            atoms.shifts.insert(atoms.shifts.end(), {x, y, z});
                        }
                    }
        }
}

class Potential {
public:
    double cutoff = 0;             // cutoff radius of neighbours in angstrom
    int reach = 0;                 // number of edges between an atom and the farthest atoms that affect its energy
    bool stress = false;           // whether the package computes stresses and virials
    std::vector<int64_t> numbers;  // accepted atomic numbers; `elements` contains their symbols
    std::vector<std::string> elements;
    std::unordered_map<std::string, std::string> facts;  // metadata of the package

    // Load a package, and check that it reproduces the results of the example it contains.
    explicit Potential(const std::string &path)
    {
        if (!std::ifstream(path))
            refuse("there is no file " + path);
        if (dlopen("libtrigraph_torch.so", RTLD_NOW) == nullptr)
            refuse(std::string(dlerror()) + "; expected its folder in the program's run path, or in LD_LIBRARY_PATH");
        if (!c10::Dispatcher::singleton().findSchema({"trigraph_cpu::agg_weighted_n2n_fwd", ""}))
            refuse("libtrigraph_torch.so found no libtorch_cpu of torch 2.9 or later");
        rethrow_errors(path, [&] { facts = load_metadata<torch::inductor::AOTIModelPackageLoader>(path); });
        if (facts["format"] != "2")
            refuse(path + " was not written by this version of trigraph.torch.export_potential");
        const std::string processor = facts["processor"], own = at::get_cpu_capability();
        if (processor != own && processor != "DEFAULT" && !(processor == "AVX2" && own == "AVX512"))
            refuse(path + " is for processors with " + processor + "; this one has " + own + ": export it here");
        cutoff = std::stod(facts["cutoff"]), reach = std::stoi(facts["reach"]), stress = facts["stress"] == "1";
        dtype = facts["dtype"] == "float32" ? at::kFloat : at::kDouble;
        numbers = numbers_in<int64_t>(facts["numbers"]);
        std::istringstream symbols(facts["elements"]);
        for (std::string symbol; symbols >> symbol;)
            elements.push_back(symbol);
        rethrow_errors(path, [&] { loader = std::make_unique<torch::inductor::AOTIModelPackageLoader>(path, "model"); });
        check_example(path);
    }

    Results compute(const Atoms &atoms) const
    {
        const int64_t number = static_cast<int64_t>(atoms.z.size()), edges = static_cast<int64_t>(atoms.src.size());
        const int64_t structures = static_cast<int64_t>(atoms.cells.size() / 9);
        check_atoms(atoms, number, edges, structures);
        const c10::InferenceMode guard;
        auto whole = [](const std::vector<int64_t> &values, at::IntArrayRef shape) {
            return at::from_blob(const_cast<int64_t *>(values.data()), shape, at::kLong);
        };
        auto real = [&](const std::vector<double> &values, at::IntArrayRef shape) {
            return at::from_blob(const_cast<double *>(values.data()), shape, at::kDouble).to(dtype);
        };
        const auto batch = atoms.batch.empty() ? at::zeros(number, at::kLong) : whole(atoms.batch, number);
        const auto weights = atoms.weights.empty() ? at::ones(number, dtype) : real(atoms.weights, number);
        std::vector<at::Tensor> outputs;
        rethrow_errors("compute", [&] {
            outputs = loader->run({whole(atoms.z, number), real(atoms.pos, {number, 3}), real(atoms.cells, {structures, 3, 3}), batch,
                at::stack({whole(atoms.src, edges), whole(atoms.dst, edges)}), whole(atoms.shifts, {edges, 3}), weights});
        });
        Results results;
        std::vector<double> *const fields[] = {&results.energy, &results.forces, &results.energies, &results.stress, &results.virials};
        for (size_t k = 0; k < outputs.size(); k++) {
            const auto values = outputs[k].to(at::kDouble).contiguous();
            fields[k]->assign(values.data_ptr<double>(), values.data_ptr<double>() + values.numel());
        }
        return results;
    }

private:
    at::ScalarType dtype = at::kDouble;
    std::unique_ptr<torch::inductor::AOTIModelPackageLoader> loader;

    // Return the metadata of a package; torch 2.9 reads metadata only from loaded packages.
    template <class Loader> static std::unordered_map<std::string, std::string> load_metadata(const std::string &path)
    {
        if constexpr (requires { Loader::load_metadata_from_package(path, "model"); })
            return Loader::load_metadata_from_package(path, "model");
        else
            return Loader(path, "model").get_metadata();
    }

    // Call a function, and rethrow torch's errors without their backtraces.
    template <class Function> static void rethrow_errors(const std::string &owner, Function function)
    {
        try {
            function();
        } catch (const c10::Error &error) {
            refuse(owner + ": " + error.what_without_backtrace());
        } catch (const std::exception &error) {
            refuse(owner + ": " + error.what());
        }
    }

    void check_atoms(const Atoms &atoms, int64_t number, int64_t edges, int64_t structures) const
    {
        auto size = [](const char *name, size_t length, int64_t expected) {
            if (static_cast<int64_t>(length) != expected)
                refuse(std::string(name) + " has length " + std::to_string(length) + "; expected " + std::to_string(expected));
        };
        auto range = [](const char *name, int64_t k, int64_t value, int64_t stop) {
            if (value < 0 || value >= stop)
                refuse(std::string(name) + "[" + std::to_string(k) + "] is " + std::to_string(value) + "; expected 0 .. "
                    + std::to_string(stop - 1));
        };
        int64_t most = 0;

        size("pos", atoms.pos.size(), 3 * number), size("cells", atoms.cells.size(), 9 * structures);
        size("dst", atoms.dst.size(), edges), size("shifts", atoms.shifts.size(), 3 * edges);
        if (!atoms.batch.empty())
            size("batch", atoms.batch.size(), number);
        if (!atoms.weights.empty())
            size("weights", atoms.weights.size(), number);
        for (int64_t k = 0; k < number; k++) {
            if (!std::binary_search(numbers.begin(), numbers.end(), atoms.z[k]))
                refuse("z[" + std::to_string(k) + "] is " + std::to_string(atoms.z[k]) + "; expected " + facts.at("numbers"));
            for (int axis = 0; axis < 3; axis++)
                if (!std::isfinite(atoms.pos[3 * k + axis]))
                    refuse("the position of atom " + std::to_string(k) + " is not finite");
            range("batch", k, atoms.batch.empty() ? 0 : atoms.batch[k], structures);
        }
        for (int64_t e = 0; e < edges; e++) {
            range("src", e, atoms.src[e], number), range("dst", e, atoms.dst[e], number);
            if (!atoms.batch.empty() && atoms.batch[atoms.src[e]] != atoms.batch[atoms.dst[e]])
                refuse("edge " + std::to_string(e) + " connects different structures");
            const double *cell = &atoms.cells[9 * (atoms.batch.empty() ? 0 : atoms.batch[atoms.src[e]])];
            bool apart = false;
            for (int axis = 0; axis < 3; axis++) {
                double component = atoms.pos[3 * atoms.src[e] + axis] - atoms.pos[3 * atoms.dst[e] + axis];
                for (int k = 0; k < 3; k++)
                    component += double(atoms.shifts[3 * e + k]) * cell[3 * k + axis];
                apart = apart || component != 0;
            }
            if (!apart)
                refuse("atoms " + std::to_string(atoms.src[e]) + " and " + std::to_string(atoms.dst[e]) + " are at the same place");
        }
        for (const auto shift : atoms.shifts)
            most = std::max(most, std::abs(shift));
        if (std::pow(double(number), 2) * std::pow(2.0 * double(most) + 1, 3) > 9e18)  // each possible edge must have an int64 index
            refuse("there are too many atoms for edges that cross " + std::to_string(most) + " cells");
    }

    void check_example(const std::string &path)
    {
        auto whole = [&](const char *name) { return numbers_in<int64_t>(facts[std::string("example_") + name]); };
        auto real = [&](const std::string &name) { return numbers_in<double>(facts[name]); };
        const auto ends = whole("edges");
        const auto middle = ends.begin() + static_cast<long>(ends.size() / 2);
        const auto got = compute({whole("z"), real("example_pos"), real("example_cells"), {ends.begin(), middle}, {middle, ends.end()},
            whole("shifts"), whole("batch"), real("example_weights")});
        const double bound = dtype == at::kFloat ? 1e-3 : 1e-9;
        double scale = 1e-30, error = 0;
        auto compare = [&](const char *name, const std::vector<double> &values) {
            const auto expected = real(std::string("expected_") + name);
            if (expected.size() != values.size() || values.empty())
                error = NAN;
            for (size_t k = 0; k < values.size() && k < expected.size(); k++) {
                scale = std::max(scale, std::abs(expected[k]));
                error += std::abs(values[k] - expected[k]);
            }
        };

        compare("energy", got.energy), compare("forces", got.forces), compare("energies", got.energies);
        if (stress)
            compare("stress", got.stress), compare("virials", got.virials);
        if (!(error <= bound * scale))
            refuse(path + ": its example has different results here; they differ by " + std::to_string(error / scale)
                + " times the largest result");
    }
};

}  // namespace trigraph
#endif
