"""What measures: `trigraph bench`, `trigraph qualify`, the soak test; records of runs lie beside them.

Every contender of a benchmark lives in a process of its own and is timed in turn with the others (`measure`,
`worker`); what is timed follows from the operator table (`workloads`); each family adds its workloads and peers in a
file of its name.
"""
