"""What `trigraph bench` runs: the panels side by side with what users would otherwise run.

Every contender lives in a process of its own and is timed in turn with the others (`measure`, `worker`); what is timed
follows from the operator table (`workloads`); each family adds its workloads and peers in a file of its name.
"""
