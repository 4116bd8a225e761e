"""Stage `parallel`: one rank of many, without the others.

In: a model on the ghost GPU and the Step that says how it is distributed. Out: the model as torch's own `fully_shard`
or DistributedDataParallel leaves it on rank 0, whose collectives go to a process group that sends nothing. torch's
code decides what is gathered, reduced, copied and freed, and when; nothing of it is imitated here.
"""

from trainfit.parallel.distribute import Distributed as Distributed
from trainfit.parallel.distribute import distribute as distribute
from trainfit.parallel.distribute import local_tensors as local_tensors
from trainfit.parallel.group import ranks as ranks
from trainfit.parallel.group import ranks_of_step as ranks_of_step
