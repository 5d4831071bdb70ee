// potential potential.pt2 structure.xyz ...: print the energy, forces and stress of each structure (an extended XYZ file
// as written by ASE), and the fastest time of 200 calls.
#include <chrono>
#include <cstdio>
#include <regex>
#include <trigraph_potential.hpp>

// Read an extended XYZ file: the number of atoms, a line that may contain Lattice="..." and pbc="T T F", then atoms.
trigraph::Atoms read_atoms_and_neighbors(const std::string &path, const trigraph::Potential &potential)
{
    std::ifstream file(path);
    std::string line;
    std::smatch match;
    trigraph::Atoms atoms;
    std::array<bool, 3> periodic = {false, false, false};

    if (!std::getline(file, line))
        throw std::runtime_error(path + " cannot be read");
    const int number = std::stoi(line);
    std::getline(file, line);
    if (std::regex_search(line, match, std::regex("Lattice=\"([^\"]*)\""))) {
        atoms.cells = trigraph::numbers_in<double>(match[1]);
        periodic = {true, true, true};
    }
    if (std::regex_search(line, match, std::regex("pbc=\"(.) (.) (.)\"")))
        periodic = {match[1] == "T", match[2] == "T", match[3] == "T"};
    for (int i = 0; i < number && std::getline(file, line); i++) {
        std::istringstream words(line);
        std::string symbol;
        double x, y, z;
        if (!(words >> symbol >> x >> y >> z))
            throw std::runtime_error(path + ": atom " + std::to_string(i) + " is not a symbol and a position");
        const auto &known = potential.elements;
        const auto at = std::find(known.begin(), known.end(), symbol);
        if (at == known.end())
            throw std::runtime_error(path + ": the potential does not know " + symbol);
        atoms.z.push_back(potential.numbers[at - known.begin()]);
        atoms.pos.insert(atoms.pos.end(), {x, y, z});
    }
    trigraph::find_neighbors(atoms, potential.cutoff, periodic);
    return atoms;
}

int main(int argc, char **argv)
try {
    if (argc < 3)
        throw std::runtime_error("usage: potential potential.pt2 structure.xyz ...");
    const trigraph::Potential potential(argv[1]);
    for (int k = 2; k < argc; k++) {
        const auto atoms = read_atoms_and_neighbors(argv[k], potential);
        const auto results = potential.compute(atoms);
        double fastest = 1e9;
        for (int call = 0; call < 200; call++) {
            const auto began = std::chrono::steady_clock::now();
            potential.compute(atoms);
            fastest = std::min(fastest, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
        }
        std::fprintf(stderr, "%zu atoms, %zu edges: %.3f ms\n", atoms.z.size(), atoms.src.size(), 1e3 * fastest);
        std::printf("energy %.17g\n", results.energy[0]);
        for (size_t i = 0; i < atoms.z.size(); i++)
            std::printf("force %.17g %.17g %.17g\n", results.forces[3 * i], results.forces[3 * i + 1], results.forces[3 * i + 2]);
        for (size_t i = 0; i < results.stress.size(); i += 3)
            std::printf("stress %.17g %.17g %.17g\n", results.stress[i], results.stress[i + 1], results.stress[i + 2]);
    }
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
