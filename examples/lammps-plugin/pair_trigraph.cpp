// SPDX-License-Identifier: GPL-2.0-only
// A LAMMPS plugin, under LAMMPS's licence: "pair_style trigraph potential.pt2 Cu Au" uses a package written by
// trigraph.torch.export_potential.
// The graph has one node per atom, however many periodic copies LAMMPS creates: edges to copies have cell shifts.
// A rank computes the energies of its own atoms. These energies depend on atoms up to `reach` edges away, so the rank's
// graph includes those atoms. Forces on atoms of other ranks are sent to their owners. A single rank has all atoms.
#include "atom.h"
#include "comm.h"
#include "domain.h"
#include "error.h"
#include "force.h"
#include "library.h"
#include "memory.h"
#include "neigh_list.h"
#include "neighbor.h"
#include "pair.h"
#include "update.h"
#include <csignal>
#include <trigraph_potential.hpp>

namespace {

volatile std::sig_atomic_t interrupts = 0;
struct sigaction before;  // the SIGINT action before a run

void handle_interrupt(int number)
{
    interrupts = interrupts + 1;
    if (interrupts > 1) {  // a second Ctrl-C ends the process at once
        std::signal(number, SIG_DFL);
        std::raise(number);
    }
    if ((before.sa_flags & SA_SIGINFO) == 0 && before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(number);  // for example, Python's handler
}

}  // namespace

namespace LAMMPS_NS {

class PairTrigraph : public Pair {
public:
    explicit PairTrigraph(LAMMPS *lmp) : Pair(lmp)
    {
        single_enable = restartinfo = 0;
        one_coeff = manybody_flag = no_virial_fdotr_compute = 1;
        centroidstressflag = CENTROID_NOTAVAIL;  // otherwise LAMMPS treats atom virials as centroid virials
    }

    ~PairTrigraph() override
    {
        set_interrupt_handling(false);
        if (allocated) {
            memory->destroy(setflag);
            memory->destroy(cutsq);
        }
    }

    void settings(int narg, char **arg) override
    {
        if (lammps_extract_setting(lmp, "tagint") != sizeof(tagint))
            error->all(FLERR, "pair_style trigraph: the plugin was built for other integer sizes than LAMMPS; expected LAMMPS_BIGBIG in both");
        if (narg < 2)
            error->all(FLERR, "pair_style trigraph: expected a package and the element of each type of atoms");
        symbols.assign(arg + 1, arg + narg);
        try {
            potential = std::make_unique<trigraph::Potential>(arg[0]);
        } catch (const std::exception &problem) {
            error->all(FLERR, std::string("pair_style trigraph: ") + problem.what());
        }
        numbers = {0};
        for (const auto &symbol : symbols) {
            const auto &known = potential->elements;
            const auto at = std::find(known.begin(), known.end(), symbol);
            if (at == known.end())
                error->all(FLERR, "pair_style trigraph: " + symbol + " is not an element of " + arg[0]);
            numbers.push_back(potential->numbers[at - known.begin()]);
        }
    }

    void coeff(int narg, char **) override
    {
        const int types = atom->ntypes;

        if (narg != 2)  // LAMMPS has checked that two arguments are asterisks
            error->all(FLERR, "pair_style trigraph: expected pair_coeff * *");
        if (static_cast<int>(symbols.size()) != types)
            error->all(FLERR, "pair_style trigraph: there are " + std::to_string(types) + " types of atoms and "
                + std::to_string(symbols.size()) + " elements; expected one for each type");
        if (!allocated) {
            memory->create(setflag, types + 1, types + 1, "pair:setflag");
            memory->create(cutsq, types + 1, types + 1, "pair:cutsq");
            allocated = 1;
        }
        for (int i = 1; i <= types; i++)
            for (int j = 1; j <= types; j++)
                setflag[i][j] = i <= j;
    }

    void init_style() override
    {
        const std::string units = update->unit_style;

        if (units != "metal" && units != "real")
            error->all(FLERR, "pair_style trigraph: units are " + units + "; expected metal or real");
        electronvolt = units == "metal" ? 1.0 : 23.060547830619;  // in kcal/mol
        if (force->newton_pair == 0 || atom->tag_enable == 0)
            error->all(FLERR, "pair_style trigraph: expected newton on, and atoms with IDs");
        for (int k = 1; k < 4; k++)
            if (atom->molecular != Atom::ATOMIC && (force->special_lj[k] == 0 || force->special_coul[k] == 0))
                error->all(FLERR, "pair_style trigraph: expected special_bonds lj/coul 1 1 1, which keeps bonded neighbours");
        if (comm->nprocs > 1) {
            if (potential->reach + 1 >= chain)
                error->all(FLERR, "pair_style trigraph: the energy of an atom depends on all others; expected one rank");
            // Two skins are added, because atoms and copies move between neighbour searches.
            const double depth = potential->reach * potential->cutoff + 2 * neighbor->skin;
            const double box[] = {domain->xprd, domain->yprd, domain->zprd};
            for (int k = 0; k < 3; k++)
                if (comm->procgrid[k] > 1 && box[k] < depth)
                    error->all(FLERR, "pair_style trigraph: the box has length " + std::to_string(box[k]) + " in a direction that is "
                        "divided among ranks; expected at least " + std::to_string(depth) + ", on which the energy of an atom depends");
            if (comm->mode != Comm::SINGLE)
                error->all(FLERR, "pair_style trigraph: expected comm_modify mode single");
            comm->cutghostuser = std::max(comm->cutghostuser, depth);
        }
        neighbor->add_request(this, NeighConst::REQ_FULL | (comm->nprocs > 1 ? NeighConst::REQ_GHOST : 0));
        set_interrupt_handling(true);
    }

    double init_one(int, int) override { return potential->cutoff; }

    void finish() override { set_interrupt_handling(false); }

    void compute(int eflag, int vflag) override
    {
        ev_init(eflag, vflag);
        if (vflag_either && !potential->stress)
            error->all(FLERR, "pair_style trigraph: the package has no stresses; expected stress=True in export_potential");
        int stopped = interrupts > 0, any = 0;
        MPI_Allreduce(&stopped, &any, 1, MPI_INT, MPI_MAX, world);
        if (any)
            error->all(FLERR, "pair_style trigraph: interrupted");
        build_graph();
        if (graph.z.empty())
            return;
        trigraph::Results results;
        try {
            results = potential->compute(graph);
        } catch (const std::exception &problem) {
            error->one(FLERR, std::string("pair_style trigraph: ") + problem.what());
        }
        for (size_t k = 0; k < node_atoms.size(); k++)
            for (int axis = 0; axis < 3; axis++) {
                const double component = results.forces[3 * k + axis];
                if (!std::isfinite(component))
                    error->one(FLERR, "pair_style trigraph: the force on atom " + std::to_string(atom->tag[node_atoms[k]])
                        + " is not finite");
                atom->f[node_atoms[k]][axis] += electronvolt * component;
            }
        if (eflag_global)
            eng_vdwl += electronvolt * results.energy[0];
        if (eflag_atom)
            for (int i = 0; i < atom->nlocal; i++)
                eatom[i] += electronvolt * results.energies[i];
        const int places[] = {0, 4, 8, 1, 2, 5};
        const double volume = domain->xprd * domain->yprd * domain->zprd;
        for (int k = 0; k < 6; k++) {
            if (vflag_global)
                virial[k] -= electronvolt * volume * results.stress[places[k]];
            if (vflag_atom)  // includes other ranks' atoms: compute stress/atom sends their virials to the owners
                for (size_t node = 0; node < node_atoms.size(); node++)
                    vatom[node_atoms[node]][k] += electronvolt * results.virials[9 * node + places[k]];
        }
    }

    double memory_usage() override
    {
        return Pair::memory_usage() + 8.0 * double(graph.z.size() * 8 + graph.src.size() * 5);
    }

private:
    static constexpr int chain = 24;  // length of the chain of atoms with which export_potential measures the reach
    std::unique_ptr<trigraph::Potential> potential;
    std::vector<std::string> symbols;
    std::vector<int64_t> numbers;  // atomic number of each type
    double electronvolt = 1.0;     // 1 eV in LAMMPS's energy unit
    trigraph::Atoms graph;
    std::vector<int> node_atoms;  // LAMMPS index of the copy that holds each node's position and force
    bool heeds = false;

    // Let Ctrl-C stop a run, or restore the earlier SIGINT action.
    void set_interrupt_handling(bool wanted)
    {
        if (wanted == heeds)
            return;
        heeds = wanted;
        if (wanted) {
            struct sigaction action = {};
            action.sa_handler = handle_interrupt;
            interrupts = 0;
            sigaction(SIGINT, &action, &before);
        } else {
            sigaction(SIGINT, &before, nullptr);
        }
    }

    int find_or_add_node(int copy, std::unordered_map<tagint, int> &nodes)
    {
        const auto [at, added] = nodes.try_emplace(atom->tag[copy], static_cast<int>(node_atoms.size()));
        if (added) {
            node_atoms.push_back(copy);
            graph.z.push_back(numbers[atom->type[copy]]);
            graph.pos.insert(graph.pos.end(), atom->x[copy], atom->x[copy] + 3);
            graph.weights.push_back(copy < atom->nlocal);
        }
        return at->second;
    }

    // Build a graph of the rank's atoms and of the atoms on which their energies depend, with all edges into these atoms
    // except the outermost ones.
    void build_graph()
    {
        const double *h = domain->h, cutsq = potential->cutoff * potential->cutoff;
        double **x = atom->x;
        std::unordered_map<tagint, int> nodes;

        graph = {};
        node_atoms.clear();
        graph.cells = {h[0], 0, 0, h[5], h[1], 0, h[4], h[3], h[2]};
        for (int i = 0; i < atom->nlocal; i++)
            find_or_add_node(i, nodes);
        size_t begin = 0, end = node_atoms.size();
        for (int layer = 0; layer < std::max(potential->reach, 1); layer++, begin = end, end = node_atoms.size())
            for (size_t node = begin; node < end; node++) {
                const int i = node_atoms[node];
                for (int n = 0; n < list->numneigh[i]; n++) {
                    const int j = list->firstneigh[i][n] & NEIGHMASK;
                    double vec[3], square = 0;
                    for (int axis = 0; axis < 3; axis++) {
                        vec[axis] = x[j][axis] - x[i][axis];
                        square += vec[axis] * vec[axis];
                    }
                    if (!(square < cutsq))
                        continue;
                    const int source = find_or_add_node(j, nodes);
                    const double *at = x[node_atoms[source]];
                    const double dx = x[j][0] - at[0], dy = x[j][1] - at[1], dz = x[j][2] - at[2];
                    const auto c = std::llround(dz / h[2]), b = std::llround((dy - h[3] * c) / h[1]);
                    const auto a = std::llround((dx - h[5] * b - h[4] * c) / h[0]);
                    graph.src.push_back(source);
                    graph.dst.push_back(static_cast<int64_t>(node));
                    graph.shifts.insert(graph.shifts.end(), {a, b, c});
                }
            }
    }
};

}  // namespace LAMMPS_NS

// Copied from LAMMPS's documentation, because installations lack lammpsplugin.h.
extern "C" {
struct lammpsplugin_t {
    const char *version, *style, *name, *info, *author;
    union {
        void *(*v1)(void *);
        void *(*v2)(void *, int, char **);
    } creator;
    void *handle;
};

void lammpsplugin_init(void *lmp, void *handle, void *regfunc)
{
    lammpsplugin_t plugin = {};
    plugin.version = static_cast<LAMMPS_NS::LAMMPS *>(lmp)->version;
    plugin.style = "pair";
    plugin.name = "trigraph";
    plugin.info = "potentials of trigraph.torch.export_potential";
    plugin.author = "trigraph";
    plugin.creator.v1 = [](void *owner) -> void * { return new LAMMPS_NS::PairTrigraph(static_cast<LAMMPS_NS::LAMMPS *>(owner)); };
    plugin.handle = handle;
    reinterpret_cast<void (*)(lammpsplugin_t *, void *)>(regfunc)(&plugin, lmp);
}
}
