"""The demo: a training job that is killed, resumed on other workers, and compared bit for bit.

``photographs`` and ``loaders`` are what is trained on, ``training`` is the job (a process of its
own), ``supervision`` runs and kills it, ``experiment`` is the plan, ``comparison`` the judgement;
``report``, ``contact_sheet``, ``loss_curves`` and ``pictures`` show it.
"""
